"""Programs that the rig starts: each ends with the rig, and says why when it fails.

A test run that is killed must leave nothing behind, so the kernel ends every child with its parent,
except those of a cluster that its user asked to keep.
"""

import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
from collections.abc import Mapping, Sequence

import psutil

from tests.cluster import cache

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1

Arguments = Sequence[str | os.PathLike[str]]


def run(
    *arguments: str | os.PathLike[str],
    cwd: pathlib.Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
) -> str:
    """What a program printed.

    Raises:
        RigError: it exited with another code than 0 (the end of what it said is in the text), or
            took longer than `timeout` seconds.
    """
    command = " ".join(os.fspath(argument) for argument in arguments)[:300]
    try:
        done = subprocess.run(
            [os.fspath(argument) for argument in arguments],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise cache.RigError(f"`{command}` took over {timeout} s") from expired
    if done.returncode:
        said = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).splitlines()[-15:])
        raise cache.RigError(f"`{command}` exited with {done.returncode}:\n{said}")
    return done.stdout


@dataclasses.dataclass(slots=True, kw_only=True)
class Program:
    """A running program and its log."""

    name: str
    log: pathlib.Path
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Arguments,
        *,
        folder: pathlib.Path,
        env: Mapping[str, str] | None = None,
        survives: bool = False,
    ) -> "Program":
        """Starts it with its output in `folder/name.log`; `survives` lets it outlive the rig.

        The kernel ends a child with the *thread* that started it: start programs from one that
        lives as long.
        """
        log = folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [os.fspath(argument) for argument in arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=None if survives else _end_with_parent,  # noqa: PLW1509
            )
        return cls(name=name, log=log, process=process)

    def require_running(self) -> None:
        """Says why the program ended, if it did.

        Raises:
            ProgramEndedError: it is not running.
        """
        code = self.process.poll()
        if code is not None:
            raise cache.ProgramEndedError(
                f"{self.name} exited with {code}, {self.log} ends:\n{self.tail()}"
            )

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return tail(self.log, lines)

    def pause(self) -> None:
        """Stops it where it is: connections stay open and nothing answers (half-open)."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused program go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self, seconds: float = 5) -> None:
        """Ends it: asks first, then kills."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    @property
    def identity(self) -> tuple[int, float]:
        """Process id and start time: an id alone is reused, both together are not."""
        return self.process.pid, psutil.Process(self.process.pid).create_time()


def tail(path: pathlib.Path, lines: int = 15) -> str:
    """The last lines of a file, indented; a file that is not there reads as said so."""
    if not path.exists():
        return f"  (no {path.name})"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16384))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
