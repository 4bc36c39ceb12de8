"""Keeps each node's taint as the rule says: decides when something or time changed, and writes.

One thread does all of it, in order. While a watch is blind nothing is decided: what is known then
is old, and neither a reason to close nor one to open. Sight that comes back starts every wait anew.
"""

import datetime as dt
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from agent.cluster import connection, errors
from agent.gate import decision, taints, view
from agent.gate.decision import Cause, Decision, Memory, Rules
from agent.gate.metrics import Metrics
from agent.gate.records import NodeView

_EVENTS = "/api/v1/namespaces/default/events"  # where the events of cluster-scoped objects live
_LONGEST_WAIT_SECONDS = 60.0
_FIRST_DELAY_SECONDS = 1.0
_LAST_DELAY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Keeper:
    """Decides about every node of the pool and makes it so, or, in mode observe, says it."""

    def __init__(
        self,
        picture: view.View,
        writer: taints.Writer,
        api: connection.Connection,
        rules: Rules,
        counters: Metrics,
        *,
        enforce: bool,
    ) -> None:
        self._view = picture
        self._writer = writer
        self._api = api
        self._rules = rules
        self._counters = counters
        self._enforce = enforce
        self._memories: dict[str, Memory] = {}
        self._causes: dict[str, Cause] = {}
        self._tainted: set[str] = set()
        # Node → when to look at it again though nothing happened.
        self._due: dict[str, float] = {}
        # Node → since when its taint differs from what it should be, and what it should be.
        self._wanted: dict[str, tuple[float, str | None]] = {}
        self._current = False
        # Node → how many writes in a row the server did not take.
        self._failures: dict[str, int] = {}
        self._resume_at = 0.0
        self._stop = threading.Event()
        self.last_step = time.monotonic()
        counters.enforcing.set(int(enforce))

    def run(self) -> None:
        """Steps until told to stop."""
        while not self._stop.is_set():
            self.last_step = time.monotonic()
            self._step()

    def stop(self) -> None:
        """Makes `run` return after the write that it is at."""
        self._stop.set()
        self._view.wake()

    def _step(self) -> None:
        """Waits for a change or a time, and does what follows from it."""
        changed = self._view.wait(self._pause())
        now = time.monotonic()
        for name in changed:
            self._due[name] = now
        if not self._sighted():
            return
        # Longest due first, so that a node whose writes always fail keeps nobody waiting.
        for name in sorted(self._due, key=self._due.__getitem__):
            if self._due[name] > now or now < self._resume_at or self._stop.is_set():
                break
            del self._due[name]
            self._look(name, now)
            self.last_step = time.monotonic()

    def _pause(self) -> float:
        now = time.monotonic()
        if not self._current:
            return _LONGEST_WAIT_SECONDS
        first = min(self._due.values(), default=now + _LONGEST_WAIT_SECONDS)
        return min(max(first, self._resume_at) - now, _LONGEST_WAIT_SECONDS)

    def _sighted(self) -> bool:
        """Whether both watches see. When they begin to, everything is looked at anew."""
        current = self._view.current
        if current != self._current:
            self._current = current
            self._counters.current.set(int(current))
            _log.info("the gate sees the cluster" if current else "the gate is blind: it holds")
            self._memories.clear()
            now = time.monotonic()
            self._due = dict.fromkeys(self._view.names() | set(self._due), now)
        return current

    def _look(self, name: str, now: float) -> None:
        node = self._view.node(name)
        if node is None:
            self._forget(name)
            return
        said = self._decide(node, now, remember=True)
        self._count(node, said.cause)
        if said.again_at is not None:
            self._due[name] = said.again_at
        wanted = said.value if said.taint else None
        if wanted == node.taint:
            self._wanted.pop(name, None)
            return
        since, before = self._wanted.get(name, (now, node.taint))
        news = name not in self._wanted or before != wanted
        self._wanted[name] = (now if news else since, wanted)
        if self._enforce:
            self._write(node, said, now)
        elif news:
            self._withhold(node, said)

    def _decide(self, node: NodeView, now: float, *, remember: bool) -> Decision:
        said, memory = decision.decide(
            node,
            agent_ready=self._view.agent_ready(node.name),
            memory=self._memories.get(node.name),
            now=now,
            rules=self._rules,
        )
        if remember:
            self._memories[node.name] = memory
        return said

    def _forget(self, name: str) -> None:
        """A node that was deleted, or taken out of the pool: then its taint stays."""
        self._memories.pop(name, None)
        self._wanted.pop(name, None)
        self._failures.pop(name, None)
        self._tainted.discard(name)
        self._counters.tainted.set(len(self._tainted))
        cause = self._causes.pop(name, None)
        if cause:
            self._counters.nodes.labels(cause=cause.value).dec()

    def _count(self, node: NodeView, cause: Cause) -> None:
        before = self._causes.get(node.name)
        if before != cause:
            if before:
                self._counters.nodes.labels(cause=before.value).dec()
            self._counters.nodes.labels(cause=cause.value).inc()
            self._causes[node.name] = cause
        if node.taint is None:
            self._tainted.discard(node.name)
        else:
            self._tainted.add(node.name)
        self._counters.tainted.set(len(self._tainted))

    def _withhold(self, node: NodeView, said: Decision) -> None:
        self._counters.withheld.labels(action=_action(said)).inc()
        _log.info("observe: would %s %s: %s", _action(said), node.name, said.why)

    def _write(self, node: NodeView, said: Decision, now: float) -> None:
        try:
            written, latest = self._writer.settle(
                node.name, lambda fresh: self._decide(fresh, now, remember=False)
            )
        except errors.ApiError as error:
            self._put_off(node.name, said, error)
            return
        said = latest or said
        self._failures.pop(node.name, None)
        self._counters.writes.labels(action=_action(said), outcome=written.value).inc()
        if written is taints.Written.DONE:
            since, _ = self._wanted.pop(node.name, (now, None))
            self._counters.write_delay.observe(time.monotonic() - since)
            _log.info("%s %s: %s", _action(said), node.name, said.why)
            self._announce(node, said)

    def _put_off(self, name: str, said: Decision, error: errors.ApiError) -> None:
        """The server did not do it: this node waits, ever longer.

        Where others would fail too, they wait a moment as well. When the server is away the watches
        are blind soon, and then everything holds.
        """
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        delay = min(_FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 10), _LAST_DELAY_SECONDS)
        now = time.monotonic()
        if isinstance(error, errors.Throttled):
            self._resume_at = now + min(error.retry_after_seconds, _LAST_DELAY_SECONDS)
        elif isinstance(error, errors.Unreachable):
            self._resume_at = now + _FIRST_DELAY_SECONDS
        self._due[name] = now + delay
        self._counters.writes.labels(action=_action(said), outcome="failed").inc()
        _log.warning("can't %s %s: %s; again in %.0f s", _action(said), name, error, delay)

    def _announce(self, node: NodeView, said: Decision) -> None:
        """An event on the node. Without it the taint stands all the same."""
        try:
            self._api.create(_EVENTS, _event(node, said))
        except errors.ApiError as error:
            _log.warning("no event about %s: %s", node.name, error)


def _action(said: Decision) -> str:
    return "taint" if said.taint else "untaint"


def _event(node: NodeView, said: Decision) -> Mapping[str, Any]:
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node.name[:200]}.{uuid.uuid4().hex}", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
        "type": "Warning" if said.taint else "Normal",
        "reason": "FabricGated" if said.taint else "FabricUngated",
        "message": f"Closed for new work ({said.value}): {said.why}"
        if said.taint
        else f"Open for work: {said.why}",
        "source": {"component": "fabric-gate"},
        "reportingComponent": "fabric-gate",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
