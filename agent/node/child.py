"""One probe process: what it is asked, what it answers, and how it is ended.

Nothing that it says is trusted.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO

import msgspec

from probes import contract

_log = logging.getLogger(__name__)

_LAST_MOMENT_SECONDS = 0.1
# What a process may say on standard error before it is cut off, per run; enough for a traceback.
_STDERR_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
# A worker that says so many lines in one look is flooding us; it answers one line per request.
_MAX_LINES_PER_READ = 100
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
_MAX_NAME_CHARS = 256
_MAX_PARTS = 512

_answers = msgspec.json.Decoder(contract.Answer)


class BrokenError(Exception):
    """A process said what it must not say: reason and message of the verdict."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Child:
    """A probe process, what it is asked, and until when it may think about it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.probe: contract.ProbeInfo | None = None
        self.started = 0.0
        self.asked_at = 0.0
        self.spawned_at = self.heard_at = time.monotonic()
        self.ready_at: float | None = None
        self.killed_at: float | None = None
        self._request_id = 0
        self._rest = b""
        self._stderr_left = _STDERR_BYTES
        for pipe in (self._process.stdin, self.out, self.errors):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    @property
    def out(self) -> IO[bytes]:
        """Its standard output."""
        assert self._process.stdout is not None  # noqa: S101  (a pipe was asked for)
        return self._process.stdout

    @property
    def errors(self) -> IO[bytes]:
        """Its standard error."""
        assert self._process.stderr is not None  # noqa: S101
        return self._process.stderr

    @property
    def gone(self) -> bool:
        """Whether it ended; reaps it."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ending(self) -> str:
        """How it ended; asked when its output ended, a moment before which the process itself does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_LAST_MOMENT_SECONDS)
        code = self._process.returncode
        if code is None:
            return "closed its output and still runs"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def due_at(self, startup_seconds: float) -> float | None:
        """When it should have answered at the latest, None while nothing is asked.

        A process says a first line when it is ready; until then its start is waited for, which on a busy machine
        takes longer than what is asked.
        """
        if self.ready_at is None:
            return self.spawned_at + startup_seconds
        if self.probe is None:
            return None
        return max(self.asked_at, self.ready_at) + self.probe.deadline

    def ask(self, probe: contract.ProbeInfo, request: contract.Request, now: float) -> None:
        """Sends a request, which has to fit into the pipe (64 KiB).

        A process that is already dead is noticed when its pipe ends, one that does not listen by
        its deadline.
        """
        self.probe, self.started, self.asked_at = probe, now, time.monotonic()
        self._request_id = request.id
        self._stderr_left = _STDERR_BYTES
        assert self._process.stdin is not None  # noqa: S101
        line = msgspec.json.encode(request) + b"\n"
        taken: int | None = 0
        with contextlib.suppress(OSError):
            taken = self._process.stdin.write(line)
        if taken != len(line):
            _log.debug("probe process %d does not listen", self.pid)

    def read(self) -> tuple[list[contract.Answer], bool]:
        """Complete answers so far, and whether the pipe ended.

        Raises:
            BrokenError: what it said is no answer, or too much.
        """
        try:
            data = os.read(self.out.fileno(), _READ_BYTES)
        except BlockingIOError:
            return [], False
        if not data:
            return [], True
        self.heard_at = time.monotonic()
        if self.ready_at is None:
            self.ready_at = self.heard_at
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > contract.MAX_LINE_BYTES or len(lines) > _MAX_LINES_PER_READ:
            raise BrokenError(
                "ProbeFlooded", f"said more than {contract.MAX_LINE_BYTES} bytes without an answer"
            )
        try:
            return [_answers.decode(line) for line in lines], False
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            text = lines[0][:80].decode(errors="replace")
            raise BrokenError(
                "ProbeGarbled", f"said {text!r}, which is no answer: {error}"
            ) from error

    def is_answer(self, answer: contract.Answer) -> bool:
        """Whether it belongs to what is being asked; a second answer to one question belongs to nothing."""
        asked = self.probe is not None and answer.id == self._request_id
        return asked and answer.verdict is not None

    def drain_errors(self) -> bool:
        """Logs what it wrote to standard error, within bounds, so that a full pipe never stops it.

        Returns:
            whether more may come: False once it closed its standard error.
        """
        try:
            data = os.read(self.errors.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        shown = data[: self._stderr_left]
        self._stderr_left -= len(shown)
        for line in shown.decode(errors="replace").splitlines():
            _log.debug("probe process %d: %s", self.pid, line)
        return bool(data)

    def kill(self) -> None:
        """SIGKILL to it and whatever it started; does not wait."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._process.poll()

    def close(self) -> None:
        """Closes our ends of its pipes."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    _log.debug("probe process %d left unread input", self.pid)


def clean(verdict: contract.Verdict) -> contract.Verdict:
    """A verdict from another process, fit to be shown: one line each, bounded, without control characters."""
    return dataclasses.replace(
        verdict,
        reason=_reason(verdict.reason),
        message=_line(verdict.message, contract.MAX_MESSAGE_CHARS),
        part=_line(verdict.part, _MAX_NAME_CHARS),
        warning=_reason(verdict.warning) if verdict.warning else "",
        notes={
            _line(k, _MAX_NAME_CHARS): _line(v, _MAX_NAME_CHARS) for k, v in verdict.notes.items()
        },
        parts=tuple(clean(part) for part in verdict.parts[:_MAX_PARTS]),
    )


def _line(text: str, limit: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:limit]


def _reason(text: str) -> str:
    """What a condition's reason may be; anything else is replaced as a whole."""
    return text if _REASON.fullmatch(text) else "BadReason"
