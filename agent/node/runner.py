"""Runs probes in processes that may hang, crash or talk nonsense, and turns each of these into a
verdict on one probe.

All passive probes share one long-lived process; each probe that moves data gets a fresh one. A run
that passes its deadline is killed and not waited for. A process that does not even die (stuck in a
driver) keeps its probe from starting again until it is gone, and no other.
"""

import contextlib
import dataclasses
import logging
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO

import msgspec

from agent.node.ledger import Run
from probes import contract

_log = logging.getLogger(__name__)

# A process that was sent SIGKILL is gone in milliseconds, unless the kernel holds it.
STUCK_SECONDS = 2.0
_LAST_MOMENT_SECONDS = 0.1
# The idle passive worker says each second that it lives.
SILENCE_SECONDS = 15.0
_BACKOFF_SECONDS = (0.0, 1.0, 5.0, 30.0)
# What a process may say on standard error before it is cut off, per run; enough for a traceback.
_STDERR_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
# A worker that says so many lines in one look is flooding us; it answers one line per request.
_MAX_LINES_PER_READ = 100

_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
_MAX_NAME_CHARS = 256
_MAX_PARTS = 512

_answers = msgspec.json.Decoder(contract.Answer)


class _Broken(Exception):
    """A process said what it must not say: reason and message of the verdict."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class _Child:
    """A probe process, what it is asked, and until when it may think about it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.probe: contract.ProbeInfo | None = None
        self.started = 0.0
        self.asked_at = 0.0
        self.heard_at = time.monotonic()
        self.killed_at: float | None = None
        self._request_id = 0
        self._rest = b""
        self._stderr_left = _STDERR_BYTES
        for pipe in (self.out, self.errors):
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

    def ask(self, probe: contract.ProbeInfo, request: contract.Request, now: float) -> None:
        """Sends a request; a process that is already dead is noticed when its pipe ends."""
        self.probe, self.started, self.asked_at = probe, now, time.monotonic()
        self._request_id = request.id
        self._stderr_left = _STDERR_BYTES
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(msgspec.json.encode(request) + b"\n")
                pipe.flush()
        except OSError:
            _log.debug("probe process %d does not listen", self.pid)

    def read(self) -> tuple[list[contract.Answer], bool]:
        """Complete answers so far, and whether the pipe ended.

        Raises:
            _Broken: what it said is no answer, or too much.
        """
        try:
            data = os.read(self.out.fileno(), _READ_BYTES)
        except BlockingIOError:
            return [], False
        if not data:
            return [], True
        self.heard_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > contract.MAX_LINE_BYTES or len(lines) > _MAX_LINES_PER_READ:
            raise _Broken(
                "ProbeFlooded", f"said more than {contract.MAX_LINE_BYTES} bytes without an answer"
            )
        try:
            return [_answers.decode(line) for line in lines], False
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = lines[0][:80].decode(errors="replace")
            raise _Broken("ProbeGarbled", f"said {text!r}, which is no answer: {error}") from error

    def is_answer(self, answer: contract.Answer) -> bool:
        """Whether it belongs to what was asked."""
        return answer.verdict is not None and answer.id == self._request_id

    def drain_errors(self) -> None:
        """Logs what it wrote to standard error, within bounds, so that a full pipe never stops it."""
        try:
            data = os.read(self.errors.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        shown = data[: self._stderr_left]
        self._stderr_left -= len(shown)
        for line in shown.decode(errors="replace").splitlines():
            _log.debug("probe process %d: %s", self.pid, line)

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


class Runner:
    """Starts probes and gives back what became of them. One thread.

    Args:
        command: what starts a probe process in serving mode (`python -m probes --serve`); `--watch`
            is added for the
            passive one.
        clock: seconds since boot, for the runs' times.
    """

    def __init__(self, command: Sequence[str], clock: Callable[[], float]) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._passive: _Child | None = None
        self._queue: list[tuple[contract.ProbeInfo, contract.Request]] = []
        self._movers: list[_Child] = []
        self._dying: list[tuple[_Child, str]] = []
        self._stuck: set[str] = set()
        self._next_id = 0
        self._deaths = 0
        self._not_before = 0.0
        self.changed: set[str] = set()
        """Ports whose state changed since the caller last looked; the caller clears it."""
        self.restarts = 0
        """How often the passive process was started again."""

    @property
    def running(self) -> frozenset[str]:
        """Probes that are asked or waiting to be, and those whose process does not die."""
        asked = [child.probe.name for child in self._children() if child.probe]
        return frozenset(asked) | {probe.name for probe, _ in self._queue} | self._stuck

    def start(self, probe: contract.ProbeInfo, request: contract.Request) -> None:
        """Asks for a run. The request's id is chosen here."""
        self._next_id += 1
        request = dataclasses.replace(request, id=self._next_id)
        if not probe.moves_data:
            self._queue.append((probe, request))
            return
        child = self._spawn(())
        self._movers.append(child)
        child.ask(probe, request, self._clock())

    def wait(self, seconds: float) -> list[Run]:
        """Waits until something happens or `seconds` pass, and gives the runs that ended."""
        self._feed_passive()
        runs: list[Run] = []
        for key, _ in self._selector.select(max(0.0, min(seconds, self._until_deadline()))):
            child, kind = key.data
            if kind == "errors":
                child.drain_errors()
            elif child in self._children():  # not killed a moment ago
                runs += self._hear(child)
        runs += self._check_deadlines()
        runs += self._check_dying()
        self._feed_passive()
        return runs

    def stop(self) -> None:
        """Kills everything."""
        for child in list(self._children()):
            self._drop(child, "")
        self._queue.clear()

    def _children(self) -> list[_Child]:
        return ([self._passive] if self._passive else []) + self._movers

    def _spawn(self, arguments: tuple[str, ...]) -> _Child:
        child = _Child((*self._command, *arguments))
        self._selector.register(child.out, selectors.EVENT_READ, (child, "out"))
        self._selector.register(child.errors, selectors.EVENT_READ, (child, "errors"))
        return child

    def _feed_passive(self) -> None:
        """Keeps the passive process alive, and asks it the next thing when it is idle."""
        if self._passive is None:
            if time.monotonic() < self._not_before:
                return
            self._passive = self._spawn(("--watch",))
        if self._passive.probe is None and self._queue:
            probe, request = self._queue.pop(0)
            self._passive.ask(probe, request, self._clock())

    def _until_deadline(self) -> float:
        left = [
            child.asked_at + child.probe.deadline - time.monotonic()
            for child in self._children()
            if child.probe
        ]
        if self._dying:
            left.append(0.1)
        return min(left, default=1.0)

    def _hear(self, child: _Child) -> list[Run]:
        try:
            answers, ended = child.read()
        except _Broken as broken:
            return self._fail(child, broken.reason, broken.message)
        runs = []
        for answer in answers:
            self.changed.update(answer.changed)
            if child.is_answer(answer) and answer.verdict is not None:
                runs.append(self._finish(child, answer.verdict))
        if ended:
            runs += self._ended(child)
        return runs

    def _finish(self, child: _Child, verdict: contract.Verdict) -> Run:
        """A run that was answered; the process of a probe that moves data has done its duty."""
        run = self._run(child, clean(verdict))
        child.probe = None
        self._deaths = 0
        if child is not self._passive:
            self._drop(child, "")
        return run

    def _ended(self, child: _Child) -> list[Run]:
        """The process closed its output: it is dead, or as good as."""
        message = f"ended without an answer: {child.ending}"
        return self._fail(child, "ProbeCrashed", message)

    def _fail(self, child: _Child, reason: str, message: str) -> list[Run]:
        """Kills the process; the probe that it was asked, if any, is Unknown for this reason."""
        runs = []
        name = child.probe.name if child.probe else ""
        if name:
            verdict = contract.Verdict(
                outcome=contract.Outcome.UNKNOWN, reason=reason, message=f"{name} {message}"
            )
            runs.append(self._run(child, clean(verdict)))
        _log.warning(
            "probe process %d %s", child.pid, message, extra={"probe": name, "reason": reason}
        )
        self._drop(child, name)
        return runs

    def _run(self, child: _Child, verdict: contract.Verdict) -> Run:
        assert child.probe is not None  # noqa: S101  (only called for a child that was asked)
        return Run(
            probe=child.probe.name, verdict=verdict, started=child.started, ended=self._clock()
        )

    def _drop(self, child: _Child, probe: str) -> None:
        """Kills a process and forgets it, until it is known to be gone."""
        for pipe in (child.out, child.errors):
            self._selector.unregister(pipe)
        child.kill()
        child.close()
        self._dying.append((child, probe))
        if child is self._passive:
            self._passive = None
            self.restarts += 1
            pause = _BACKOFF_SECONDS[min(self._deaths, len(_BACKOFF_SECONDS) - 1)]
            self._not_before = time.monotonic() + pause
            self._deaths += 1
        else:
            self._movers.remove(child)

    def _check_deadlines(self) -> list[Run]:
        runs = []
        now = time.monotonic()
        for child in list(self._children()):
            if child.probe and now - child.asked_at > child.probe.deadline:
                message = f"did not answer within {child.probe.deadline:g} s and was killed"
                runs += self._fail(child, "ProbeTimedOut", message)
            elif (
                child is self._passive
                and not child.probe
                and now - child.heard_at > SILENCE_SECONDS
            ):
                runs += self._fail(child, "ProbeTimedOut", "gave no sign of life")
        return runs

    def _check_dying(self) -> list[Run]:
        """Reaps what died; what does not die holds its probe back, and says so once."""
        runs = []
        for child, probe in list(self._dying):
            if child.gone:
                self._dying.remove((child, probe))
                self._stuck.discard(probe)
            elif (
                probe
                and probe not in self._stuck
                and child.killed_at is not None
                and time.monotonic() - child.killed_at > STUCK_SECONDS
            ):
                self._stuck.add(probe)
                message = f"{probe}: its process {child.pid} does not die: a driver holds it in the kernel"
                verdict = contract.Verdict(
                    outcome=contract.Outcome.UNKNOWN, reason="ProbeStuck", message=message
                )
                runs.append(
                    Run(probe=probe, verdict=verdict, started=child.started, ended=self._clock())
                )
        return runs


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
