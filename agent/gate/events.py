"""What the gate says for people: core/v1 Events. None of them is needed for anything else."""

import datetime as dt
import logging
import threading
import time
import uuid
from typing import Any

from agent.cluster import connection, errors, leader
from agent.gate import metrics, pace
from agent.gate.decision import Decision
from agent.gate.records import NodeView

_MAX_MESSAGE_CHARS = 1024
# A mass event must not become a storm of words: the taints, the metrics and the log say the same.
_PER_SECOND = 10.0
_BURST = 50

_log = logging.getLogger(__name__)


class Events:
    """Creates events, no more than an API server should have to take. Threads may share it."""

    def __init__(
        self, api: connection.Connection, namespace: str, counters: metrics.Metrics
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._counters = counters
        self._lock = threading.Lock()
        self._pace = pace.Pace(per_second=_PER_SECOND, burst=_BURST)

    def gated(self, node: NodeView, said: Decision) -> None:
        """A node was closed or opened."""
        if said.taint:
            text = f"Closed for new work ({said.value}): {said.why}"
            self._send(_about(node), "default", "FabricGated", text, warning=True)
        else:
            text = f"Open for work: {said.why}"
            self._send(_about(node), "default", "FabricUngated", text, warning=False)

    def malformed(self, node: NodeView, said: Decision) -> None:
        """Something on the node can't be read, and so counts as absent."""
        text = f"Can't be read: {node.malformed}. {said.why}"
        self._send(_about(node), "default", "FabricStateMalformed", text, warning=True)

    def breaker(self, pool: str, text: str, *, is_open: bool) -> None:
        """The breaker of a pool opened, held more, or closed again."""
        about = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "name": leader.NAME,
            "namespace": self._namespace,
        }
        reason = "FabricBreakerOpen" if is_open else "FabricBreakerClosed"
        self._send(
            about, self._namespace, reason, f"Pool {pool or '(no value)'}: {text}", warning=is_open
        )

    def _send(
        self, about: dict[str, Any], namespace: str, reason: str, text: str, *, warning: bool
    ) -> None:
        with self._lock:
            room = self._pace.take(time.monotonic())
        if not room:
            self._counters.events.labels(outcome="dropped").inc()
            return
        try:
            self._api.create(
                f"/api/v1/namespaces/{namespace}/events",
                _event(about, namespace, reason, text, warning=warning),
            )
        except errors.ApiError as error:
            self._counters.events.labels(outcome="failed").inc()
            _log.warning("no event about %s: %s", about["name"], error)
        else:
            self._counters.events.labels(outcome="done").inc()


def _about(node: NodeView) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}


def _event(
    about: dict[str, Any], namespace: str, reason: str, text: str, *, warning: bool
) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about['name'][:200]}.{uuid.uuid4().hex}", "namespace": namespace},
        "involvedObject": about,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": text[:_MAX_MESSAGE_CHARS],
        "source": {"component": "fabric-gate"},
        "reportingComponent": "fabric-gate",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
