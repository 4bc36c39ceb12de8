"""What the rig builds is kept outside the checkout, and reused until what it is made from changes.

The cold build takes many minutes, so a half-written entry must never be taken for a whole one, and
two runs at once must not build the same thing twice: an entry is made in a temporary sibling, then
renamed, under a lock of its own.
"""

import dataclasses
import fcntl
import hashlib
import inspect
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

# The last two versions of an entry stay, so that going back and forth between two branches rebuilds
# nothing.
KEPT_VERSIONS = 2

Inputs = Mapping[str, str]
"""What an entry is made from: a name for people, and a text that changes when it does."""


class RigError(Exception):
    """The rig cannot go on. The text says what is wrong, where, and what to do."""


class ProgramEndedError(RigError):
    """A program that should run has ended: there is nothing left to wait for."""


def folder() -> pathlib.Path:
    """Where entries are kept: `$FABRIC_READY_CACHE`, or the user's cache folder."""
    default = pathlib.Path("~/.cache/fabric-readiness-agent")
    path = pathlib.Path(os.environ.get("FABRIC_READY_CACHE") or default).expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def say(text: str) -> None:
    """One line of progress, at once: the steps are long and people wait for them."""
    print(f"rig: {text}", flush=True)


def digest_of_files(root: pathlib.Path, paths: Iterable[pathlib.Path] | None = None) -> str:
    """A hash over names and contents of files below `root`: those given, or all."""
    found = root.rglob("*") if paths is None else paths
    digest = hashlib.sha256()
    for path in sorted(
        path for path in found if path.is_file() and "__pycache__" not in path.parts
    ):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def recipe(*functions: Callable[..., object]) -> str:
    """The source of functions, as an input: a changed way of building is a changed entry."""
    return "\n".join(inspect.getsource(function) for function in functions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that can be built and kept: a name, what it is made from, how, and its size."""

    name: str
    inputs: Inputs
    build: Callable[[pathlib.Path], None]
    """Makes the entry inside the empty folder that it is given."""
    megabytes: int
    """Disk that the finished entry and its making need, measured once and rounded up."""

    @property
    def path(self) -> pathlib.Path:
        """Where the finished entry lies, or would."""
        key = hashlib.sha256(json.dumps(dict(self.inputs), sort_keys=True).encode()).hexdigest()
        return folder() / f"{self.name}-{key[:16]}"

    def get(self) -> pathlib.Path:
        """The finished entry, built now if it is not there.

        Raises:
            RigError: the disk is too full to build it, or a step failed.
        """
        with locked(folder() / f".{self.name}.lock"):
            if self.path.exists():
                os.utime(self.path)
                return self.path
            require_disk([self])
            self._make()
            self._prune()
        return self.path

    def _make(self) -> None:
        say(f"{self.name}: building")
        started = time.monotonic()
        unfinished = folder() / f".{self.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        self.build(unfinished)
        os.sync()
        unfinished.rename(self.path)
        os.utime(self.path)
        say(f"{self.name}: built in {time.monotonic() - started:.0f} s")

    def _prune(self) -> None:
        # Names may begin alike ("image" and "image-disk"), keys have a fixed length.
        versions = [
            path
            for path in folder().glob(f"{self.name}-*")
            if len(path.name) == len(self.path.name)
        ]
        for old in sorted(versions, key=lambda path: -path.stat().st_mtime)[KEPT_VERSIONS:]:
            shutil.rmtree(old, ignore_errors=True)


def require_disk(entries: Iterable[Entry]) -> None:
    """Stops with one line when the disk has less room than what is not yet built will take."""
    missing = [entry for entry in entries if not entry.path.exists()]
    needed = sum(entry.megabytes for entry in missing)
    free = shutil.disk_usage(folder()).free // 2**20
    if free < needed:
        names = ", ".join(entry.name for entry in missing)
        raise RigError(
            f"{folder()} has {free} MB free, and building {names} needs {needed} MB: "
            "free some, or set FABRIC_READY_CACHE to a folder on a larger disk",
        )


@contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock file, saying so when another run has it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that builds the same ({path.name})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
