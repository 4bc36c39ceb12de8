"""Runs probes in processes that may hang, crash or talk nonsense, and turns each of these into a
verdict on one probe.

All passive probes share one long-lived process; each probe that moves data gets a fresh one. A run
that passes its deadline is killed and not waited for. A process that does not even die (stuck in a
driver) keeps its probe from starting again until it is gone, and no other. Where no process can be
started at all, its probe is Unknown for that.
"""

import dataclasses
import errno
import logging
import selectors
import time
from collections.abc import Callable, Sequence

from agent.node.child import BrokenError, Child, clean
from agent.node.ledger import Run
from probes import contract

_log = logging.getLogger(__name__)

# A process that was sent SIGKILL is gone in milliseconds, unless the kernel holds it.
STUCK_SECONDS = 2.0
# The idle passive worker says each second that it lives.
SILENCE_SECONDS = 15.0
# An interpreter starts in a tenth of a second, on a machine that has one to spare.
STARTUP_SECONDS = 60.0
_BACKOFF_SECONDS = (0.0, 1.0, 5.0, 30.0)
# Processes that were killed and are not gone. More than these, and each new one would only join
# them until the node has no process ids left.
MOST_DYING = 16


class Runner:
    """Starts probes and gives back what became of them. One thread.

    Args:
        command: what starts a probe process in serving mode (`python -m probes --serve`); `--watch`
            is added for the
            passive one.
        clock: seconds since boot, for the runs' times.
        most_dying: how many killed processes may be left; beyond it none is started.
    """

    def __init__(
        self,
        command: Sequence[str],
        clock: Callable[[], float],
        *,
        startup_seconds: float = STARTUP_SECONDS,
        most_dying: int = MOST_DYING,
    ) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._startup_seconds = startup_seconds
        self._most_dying = most_dying
        self._selector = selectors.DefaultSelector()
        self._passive: Child | None = None
        self._queue: list[tuple[contract.ProbeInfo, contract.Request]] = []
        self._movers: list[Child] = []
        self._dying: list[tuple[Child, str]] = []
        self._stuck: set[int] = set()
        self._never_started: list[Run] = []
        self._next_id = 0
        self._deaths = 0
        self._not_before = 0.0
        self.changed: set[str] = set()
        """Ports whose state changed since the caller last looked; the caller clears it."""
        self.restarts = 0
        """How often the passive process was started again since then, likewise."""

    @property
    def running(self) -> frozenset[str]:
        """Probes that are asked or waiting to be, and those whose process is not gone yet."""
        asked = {child.probe.name for child in self._children() if child.probe}
        waiting = {probe.name for probe, _ in self._queue}
        return frozenset(asked | waiting | {probe for _, probe in self._dying if probe})

    def start(self, probe: contract.ProbeInfo, request: contract.Request) -> None:
        """Asks for a run. The request's id is chosen here."""
        self._next_id += 1
        request = dataclasses.replace(request, id=self._next_id)
        if not probe.moves_data:
            self._queue.append((probe, request))
            return
        try:
            child = self._spawn(())
        except OSError as error:
            self._never_started.append(self._not_started(probe, error))
            return
        self._movers.append(child)
        child.ask(probe, request, self._clock())

    def wait(self, seconds: float) -> list[Run]:
        """Waits until something happens or `seconds` pass, and gives the runs that ended."""
        self._feed_passive()
        runs, self._never_started = self._never_started, []
        patience = 0.0 if runs else max(0.0, min(seconds, self._until_deadline()))
        for key, _ in self._selector.select(patience):
            child, kind = key.data
            if child not in self._children():  # killed a moment ago
                continue
            if kind == "out":
                runs += self._hear(child)
            elif not child.drain_errors():
                self._selector.unregister(child.errors)
        runs += self._check_deadlines()
        runs += self._check_dying()
        self._feed_passive()
        return runs

    def stop(self) -> None:
        """Kills everything, and waits a moment for it to be gone."""
        for child in list(self._children()):
            self._drop(child, "")
        self._queue.clear()
        deadline = time.monotonic() + STUCK_SECONDS
        while self._dying and time.monotonic() < deadline:
            self._check_dying()
            time.sleep(0.01)
        self._selector.close()

    def _children(self) -> list[Child]:
        return ([self._passive] if self._passive else []) + self._movers

    def _spawn(self, arguments: tuple[str, ...]) -> Child:
        if len(self._dying) >= self._most_dying:
            raise OSError(errno.EBUSY, f"{len(self._dying)} earlier ones do not die")
        child = Child((*self._command, *arguments))
        self._selector.register(child.out, selectors.EVENT_READ, (child, "out"))
        self._selector.register(child.errors, selectors.EVENT_READ, (child, "errors"))
        return child

    def _feed_passive(self) -> None:
        """Keeps the passive process alive, and asks it the next thing when it is idle."""
        if self._passive is None:
            if time.monotonic() < self._not_before:
                return
            try:
                self._passive = self._spawn(("--watch",))
            except OSError as error:
                self._never_started += [self._not_started(one, error) for one, _ in self._queue]
                self._queue.clear()
                self._back_off()
                return
        if self._passive.probe is None and self._queue:
            probe, request = self._queue.pop(0)
            self._passive.ask(probe, request, self._clock())

    def _back_off(self) -> None:
        """The passive process is not started again at once if it did not live to give an answer."""
        pause = _BACKOFF_SECONDS[min(self._deaths, len(_BACKOFF_SECONDS) - 1)]
        self._not_before = time.monotonic() + pause
        self._deaths += 1

    def _not_started(self, probe: contract.ProbeInfo, error: OSError) -> Run:
        message = f"{probe.name}: no process can be started for it: {error.strerror}"
        _log.warning("%s", message, extra={"probe": probe.name})
        verdict = contract.Verdict(
            outcome=contract.Outcome.UNKNOWN, reason="ProbeNotStarted", message=message
        )
        now = self._clock()
        return Run(probe=probe.name, verdict=verdict, started=now, ended=now)

    def _until_deadline(self) -> float:
        due = [child.due_at(self._startup_seconds) for child in self._children()]
        left = [at - time.monotonic() for at in due if at is not None]
        if self._dying:
            left.append(0.1)
        return min(left, default=1.0)

    def _hear(self, child: Child) -> list[Run]:
        try:
            answers, ended = child.read()
        except BrokenError as broken:
            return self._fail(child, broken.reason, broken.message)
        runs = []
        for answer in answers:
            self.changed.update(answer.changed)
            if child.is_answer(answer) and answer.verdict is not None:
                runs.append(self._finish(child, answer.verdict))
        if ended:
            runs += self._ended(child)
        return runs

    def _finish(self, child: Child, verdict: contract.Verdict) -> Run:
        """A run that was answered; the process of a probe that moves data has done its duty."""
        run = self._run(child, clean(verdict))
        child.probe = None
        if child is self._passive:
            self._deaths = 0
        else:
            self._drop(child, run.probe)
        return run

    def _ended(self, child: Child) -> list[Run]:
        """The process closed its output: it is dead, or as good as."""
        message = f"ended without an answer: {child.ending}"
        return self._fail(child, "ProbeCrashed", message)

    def _fail(self, child: Child, reason: str, message: str) -> list[Run]:
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

    def _run(self, child: Child, verdict: contract.Verdict) -> Run:
        assert child.probe is not None  # noqa: S101  (only called for a child that was asked)
        return Run(
            probe=child.probe.name, verdict=verdict, started=child.started, ended=self._clock()
        )

    def _drop(self, child: Child, probe: str) -> None:
        """Kills a process and forgets it, until it is known to be gone."""
        for pipe in (child.out, child.errors):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        child.kill()
        child.close()
        self._dying.append((child, probe))
        if child is self._passive:
            self._passive = None
            self.restarts += 1
            self._back_off()
        else:
            self._movers.remove(child)

    def _check_deadlines(self) -> list[Run]:
        runs = []
        now = time.monotonic()
        for child in list(self._children()):
            due = child.due_at(self._startup_seconds)
            if due is not None and now > due:
                runs += self._fail(child, "ProbeTimedOut", self._lateness(child))
            elif due is None and child is self._passive and now - child.heard_at > SILENCE_SECONDS:
                runs += self._fail(child, "ProbeTimedOut", "gave no sign of life")
        return runs

    def _lateness(self, child: Child) -> str:
        if child.ready_at is None or child.probe is None:
            return f"did not start within {self._startup_seconds:g} s and was killed"
        return f"did not answer within {child.probe.deadline:g} s and was killed"

    def _check_dying(self) -> list[Run]:
        """Reaps what died; what does not die holds its probe back, and says so once."""
        runs = []
        for child, probe in list(self._dying):
            if child.gone:
                self._dying.remove((child, probe))
                self._stuck.discard(child.pid)
            elif (
                probe
                and child.pid not in self._stuck
                and child.killed_at is not None
                and time.monotonic() - child.killed_at > STUCK_SECONDS
            ):
                self._stuck.add(child.pid)
                message = f"{probe}: its process {child.pid} does not die: a driver holds it in the kernel"
                verdict = contract.Verdict(
                    outcome=contract.Outcome.UNKNOWN, reason="ProbeStuck", message=message
                )
                runs.append(
                    Run(probe=probe, verdict=verdict, started=child.started, ended=self._clock())
                )
        return runs
