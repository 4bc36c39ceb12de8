"""What the probes' side says about itself: which there are, and whether the settings' limits are theirs."""

import hashlib
import subprocess
import sys

import msgspec

from agent.settings import Settings, SettingsError
from probes import contract

COMMAND = (sys.executable, "-m", "probes")
_SECONDS = 60.0


class ProbesUnusable(Exception):  # noqa: N818
    """The probes' side does not answer at all; one line."""


def serving(settings: Settings) -> tuple[str, ...]:
    """The command of a process that answers requests."""
    return (*COMMAND, "--serve", "--root", settings.host.root)


def catalogue(settings: Settings) -> contract.Catalogue:
    """All probes, from a process that may import them.

    Limits and probe names in the settings that do not exist are refused, before anything runs.

    Raises:
        SettingsError: one line that names what is wrong.
        ProbesUnusable: the probes' side did not answer.
    """
    limits = {"profile.limits": settings.profile.limits, "limits": settings.limits}
    known = _ask(msgspec.json.encode(limits))
    names = {one.name for one in known.probes} | set(known.broken)
    for name in settings.disable:
        if name not in names:
            listed = ", ".join(sorted(names))
            raise SettingsError(f"no probe is called {name!r}; there are: {listed}", ("disable",))
    if known.problems:
        raise SettingsError(known.problems[0].text, known.problems[0].where)
    return known


def request(settings: Settings, name: str, seen: tuple[str, ...] = ()) -> contract.Request:
    """What a probe is asked under these settings; `seen` are its parts that passed earlier in this boot."""
    limits, origins = settings.limits_for(name)
    return contract.Request(
        id=0,
        probe=name,
        root=settings.host.root,
        gid_index=settings.host.gid_index,
        inputs={contract.SEEN: "\n".join(seen)} if seen else {},
        limits=limits,
        origins=origins,
    )


def judged_by(settings: Settings) -> str:
    """Twelve digits that change with anything that verdicts are judged by."""
    judged = (settings.rungs, settings.profile, settings.limits, settings.disable)
    return hashlib.sha256(msgspec.json.encode(judged, order="sorted")).hexdigest()[:12]


def _ask(limits: bytes) -> contract.Catalogue:
    try:
        done = subprocess.run(
            [*COMMAND, "--catalogue"],
            input=limits,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbesUnusable(f"the probes can't be run: {error}") from error
    if done.returncode:
        raise ProbesUnusable(f"the list of probes can't be had: {_last_line(done.stderr)}")
    try:
        return msgspec.json.decode(done.stdout, type=contract.Catalogue)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProbesUnusable(f"the list of probes is no list: {error}") from error


def _last_line(said: bytes) -> str:
    return next(iter(reversed(said.decode(errors="replace").splitlines())), "no reason given")
