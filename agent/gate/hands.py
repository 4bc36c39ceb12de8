"""Does what was decided, several nodes at a time, and hands back what became of it.

An API server answers in milliseconds or, when it is busy, in seconds. One node's slow answer must
not be every node's, and the one who decides must not wait at all.
"""

import concurrent.futures
import dataclasses
import functools
import queue
from collections.abc import Callable

from agent.cluster import errors
from agent.gate import events, fabricnodes, metrics, taints
from agent.gate.decision import Decision
from agent.gate.records import FabricNode, NodeView
from agent.gate.taints import Written

_THREADS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done about one node; what is None is not.

    `taint` holds the decision, the question to ask again about a fresh copy of the node, and the
    time (since 1970) of the decision. `create`, `adopt` are the FabricNode as it should be.
    `delete` is for a FabricNode whose Node is another or gone, `release` for a node that left the
    pool. `malformed` asks for an event.
    """

    node: NodeView
    said: Decision | None = None
    taint: tuple[Callable[[NodeView], Decision], float] | None = None
    create: FabricNode | None = None
    adopt: FabricNode | None = None
    delete: bool = False
    release: bool = False
    malformed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a job: of its taint, and the first call that the server did not take."""

    job: Job
    written: Written | None = None
    error: errors.ApiError | None = None


class Hands:
    """A few threads that write."""

    def __init__(
        self,
        writer: taints.Writer,
        objects: fabricnodes.Writer,
        teller: events.Events,
        counters: metrics.Metrics,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called from those threads when something is done."""
        self._writer = writer
        self._objects = objects
        self._events = teller
        self._counters = counters
        self._wake = wake
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "hands")

    def give(self, job: Job) -> None:
        """Starts a job, or puts it behind those that are waiting."""
        self._pool.submit(self._work, job)

    def done(self) -> list[Done]:
        """The jobs that ended since the last call."""
        found: list[Done] = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def stop(self) -> None:
        """Waits for what was begun; begins nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def tell_breaker(self, pool: str, text: str, *, is_open: bool) -> None:
        """Has an event about a pool's breaker written."""
        self._pool.submit(self._events.breaker, pool, text, is_open=is_open)

    def _work(self, job: Job) -> None:
        done = Done(job=job, error=errors.Unreachable("the gate's writer failed"))
        try:
            done = self._do(job)
        finally:  # whatever happened, the one who waits for it hears of it
            self._done.put(done)
            self._wake()

    def _do(self, job: Job) -> Done:
        written: Written | None = None
        try:
            if job.said and job.taint:
                decide, now = job.taint
                written = self._settle(job.node, job.said, decide, now)
            if job.release:
                written = self._release(job.node.name)
            if job.malformed and job.said:
                self._events.malformed(job.node, job.said)
            self._own(job)
        except errors.ApiError as error:
            return Done(job=job, written=written, error=error)
        return Done(job=job, written=written)

    def _settle(
        self, node: NodeView, said: Decision, decide: Callable[[NodeView], Decision], now: float
    ) -> Written:
        action = "taint" if said.taint else "untaint"
        try:
            written = self._writer.settle(node, said, decide, now)
        except errors.ApiError:
            self._counters.writes.labels(action=action, outcome="failed").inc()
            raise
        self._counters.writes.labels(action=action, outcome=written.value).inc()
        if written is Written.DONE:
            self._events.gated(node, said)
        return written

    def _release(self, name: str) -> Written:
        written = self._writer.release(name)
        self._counters.writes.labels(action="release", outcome=written.value).inc()
        if written in {Written.DONE, Written.UNCHANGED, Written.GONE}:
            self._count("delete", lambda: self._objects.delete(name))
        return written

    def _own(self, job: Job) -> None:
        name = job.node.name
        if job.delete:
            self._count("delete", lambda: self._objects.delete(name))
        if job.create:
            self._count("create", functools.partial(self._objects.create, job.create))
        if job.adopt:
            self._count("adopt", functools.partial(self._objects.adopt, job.adopt))

    def _count(self, action: str, write: Callable[[], None]) -> None:
        outcome = "failed"
        try:
            write()
            outcome = "done"
        except errors.Conflict as error:
            # What is to be deleted or changed is gone: the watch has it or will bring it.
            if not error.gone:
                raise
            outcome = "unchanged"
        finally:
            self._counters.object_writes.labels(action=action, outcome=outcome).inc()
