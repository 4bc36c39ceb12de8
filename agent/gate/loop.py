"""The gate as a process: two watches, one keeper, one page of metrics, until it is told to stop.

Its taints stay when it ends. What should run once in a cluster (the keeper) is apart from what each
replica may do (watch, serve metrics), so that leader election can come between them.
"""

import functools
import logging
import signal
import threading
import time

from agent import endpoint
from agent.cluster import connection, errors
from agent.gate import decision, keeper, metrics, records, taints, view, watch
from agent.settings import Settings

# A step waits a minute at most and makes a few calls with deadlines of their own.
_STUCK_SECONDS = 180.0
_LAST_WRITE_SECONDS = 15.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Runs the gate until SIGTERM or SIGINT.

    Returns:
        the process's exit code: 0 after a signal, 1 when it can't start or a part of it ended.
    """
    gate = settings.gate
    # Before any thread starts, so that all inherit it and the signals come to `sigtimedwait` alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        api = connection.Connection.find()
    except errors.Refused as error:
        _log.error("the gate can't start: %s", error)
        return 1
    parts = _Parts(settings, api)
    try:
        pages = {
            "/metrics": endpoint.metrics(parts.counters.registry),
            "/healthz": endpoint.check(parts.healthy),
            "/readyz": endpoint.check(parts.ready),
        }
        server = endpoint.Server((gate.http_address, gate.http_port), pages)
    except OSError as error:
        where = f"{gate.http_address}:{gate.http_port}"
        why = error.strerror
        _log.error("the gate can't serve %s: %s; set gate.http_port", where, why)
        return 1
    with server:
        server.start()
        _log.info("the gate runs in mode %s on nodes with label %s", gate.mode, gate.pool_label)
        code = parts.run()
        server.shutdown()
    return code


class _Parts:
    """What runs, and how it is known to run."""

    def __init__(self, settings: Settings, api: connection.Connection) -> None:
        gate = settings.gate
        self.counters = metrics.Metrics()
        self._view = view.View()
        nodes = watch.Collection(
            what="nodes",
            path="/api/v1/nodes",
            query={"labelSelector": gate.pool_label},
            read=functools.partial(records.node_view, taint_key=gate.taint_key),
        )
        pods = watch.Collection(
            what="pods",
            path=f"/api/v1/namespaces/{gate.namespace}/pods",
            query={"labelSelector": gate.agent_selector},
            read=records.agent_pod,
        )
        self._keeper = keeper.Keeper(
            self._view,
            taints.Writer(api, key=gate.taint_key, pool_label=gate.pool_label),
            api,
            decision.Rules(
                absence_grace_seconds=gate.absence_grace_seconds,
                stable_seconds=gate.stable_seconds,
            ),
            self.counters,
            enforce=gate.mode == "enforce",
        )
        node_watch = watch.Watch(api, nodes, self._view.nodes, self.counters)
        pod_watch = watch.Watch(api, pods, self._view.pods, self.counters)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("nodes", node_watch.run),
                ("pods", pod_watch.run),
                ("keeper", self._keeper.run),
            )
        ]

    def run(self) -> int:
        """Runs all parts until a signal comes or one of them ends; the exit code."""
        for thread in self._threads:
            thread.start()
        while signal.sigtimedwait(_SIGNALS, 1.0) is None:
            if ended := self._ended():
                _log.critical("the gate ends, to be started again: %s", ended)
                return 1
        _log.info("the gate stops; its taints stay")
        self._keeper.stop()
        self._threads[-1].join(_LAST_WRITE_SECONDS)
        return 0

    def healthy(self) -> str:
        """Empty while every part runs and decides."""
        if ended := self._ended():
            return ended
        silent = time.monotonic() - self._keeper.last_step
        return f"no step for {silent:.0f} s" if silent > _STUCK_SECONDS else ""

    def ready(self) -> str:
        """Empty while the gate sees the cluster."""
        return "" if self._view.current else "the API server is not heard; nothing is changed"

    def _ended(self) -> str:
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        return f"{', '.join(ended)} ended" if ended else ""
