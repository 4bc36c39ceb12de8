"""The file that says on the node itself that its fabric was proven in this boot.

A device plugin that waits for it (`fabric-ready wait`) offers nothing to the kubelet before, whatever
the API server, the gate or a pod's tolerations say. It lies on tmpfs and names its boot, so that a
reboot takes it away twice over. Nothing else does: a plugin that has started does not look again, so a
fault at run time is for the condition and the taint to tell.
"""

import dataclasses
import logging
from pathlib import Path

from agent.node import clock, files, ledger
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger

_log = logging.getLogger(__name__)

NAME = "verified"
RUNGS = ("inventory", "driver", "loopback")
"""What has to pass: the rungs that need nothing of a device plugin, nor of another node."""

_MAX_BYTES = 256
_MODE = 0o644  # those who wait are not root


class Unusable(Exception):  # noqa: N818
    """The file is there and says nothing that could be relied on; the text is why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The file's content, one line: the boot in which the fabric was proven, and the time of day."""

    boot_id: str
    time: str


def read(path: Path) -> Proof:
    """What the file says.

    Raises:
        FileNotFoundError: there is none.
        Unusable: it can't be read, or is no proof.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(f"can't be read: {error.strerror}") from error
    try:
        boot_id, time = content.decode("ascii").split()
    except ValueError as error:
        raise Unusable("is not a boot id and a time") from error
    if len(content) > _MAX_BYTES or not content.endswith(b"\n"):
        raise Unusable("is not one whole line")
    return Proof(boot_id=boot_id, time=time)


def is_due(record: Ledger, ladder: Ladder) -> bool:
    """Whether the rungs in `RUNGS` that the ladder has were proven: bytes moved, where one of them moves any."""
    rungs = tuple(rung for rung in ladder.rungs if rung in RUNGS)
    return ledger.proven(record, dataclasses.replace(ladder, rungs=rungs))


class VerifiedFile:
    """The file in `folder`, kept for one boot: what another boot left is removed at once."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._path = folder / NAME
        self._boot_id = boot_id
        self._there = self._is_of_this_boot()

    def update(self, record: Ledger, ladder: Ladder) -> None:
        """Writes the file as soon as it is due; once written it stays."""
        if self._there or not is_due(record, ladder):
            return
        line = f"{self._boot_id} {clock.timestamp()}\n"
        try:
            files.replace(self._path, line.encode("ascii"), _MODE)
        except OSError as error:
            # Tried again at the next verdict; until then device plugins wait.
            _log.warning("%s can't be written: %s", self._path, error.strerror)
            return
        self._there = True
        _log.info("fabric proven in this boot: %s is there for device plugins", self._path)

    def _is_of_this_boot(self) -> bool:
        try:
            found = read(self._path)
        except FileNotFoundError:
            return False
        except Unusable as error:
            _log.warning("%s is removed: %s", self._path, error)
        else:
            if found.boot_id == self._boot_id:
                return True
            _log.info("%s is removed: it is of boot %s", self._path, found.boot_id)
        try:
            self._path.unlink()
        except OSError as error:
            # Nobody is let in by it: those who wait compare its boot with theirs.
            _log.warning("%s can't be removed: %s", self._path, error.strerror)
        return False
