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


def catalogue() -> contract.Catalogue:
    """All probes, from a process that may import them.

    Raises:
        ProbesUnusable: it did not answer.
    """
    done = _run("--catalogue")
    if done.returncode:
        raise ProbesUnusable(f"the list of probes can't be had: {_last_line(done.stderr)}")
    try:
        return msgspec.json.decode(done.stdout, type=contract.Catalogue)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProbesUnusable(f"the list of probes is no list: {error}") from error


def validate(settings: Settings, known: contract.Catalogue) -> None:
    """Refuses limits and probe names that do not exist, before anything runs.

    Raises:
        SettingsError: one line that names what is wrong.
        ProbesUnusable: the probes' side did not answer.
    """
    names = {one.name for one in known.probes} | set(known.broken)
    for name in settings.disable:
        if name not in names:
            raise SettingsError(
                f"disable: no probe is called {name!r}; there are: {', '.join(sorted(names))}"
            )
    for where, limits in (("profile.limits", settings.profile.limits), ("limits", settings.limits)):
        if limits and (done := _run("--validate", msgspec.json.encode(limits))).returncode:
            raise SettingsError(f"{where}: {_first_line(done.stderr)}")


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


def _run(argument: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            [*COMMAND, argument], input=stdin, capture_output=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbesUnusable(f"the probes can't be run: {error}") from error


def _first_line(said: bytes) -> str:
    return next(iter(said.decode(errors="replace").splitlines()), "no reason given")


def _last_line(said: bytes) -> str:
    return next(iter(reversed(said.decode(errors="replace").splitlines())), "no reason given")
