"""The gate as a process: three watches, one keeper, one page of metrics, until it is told to stop.

Its taints stay when it ends. Each replica watches and serves metrics; the one that leads decides.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable

import msgspec

from agent import endpoint
from agent.cluster import connection, errors, leader
from agent.gate import (
    events,
    fabricnodes,
    hands,
    keeper,
    metrics,
    sources,
    taints,
    view,
    watch,
)
from agent.settings import GateSettings, Settings, SettingsError

# A step waits a minute at most and makes a few calls with deadlines of their own.
_STUCK_SECONDS = 180.0
_LAST_WRITE_SECONDS = 15.0
_SETTINGS_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


def run(settings: Settings, read_again: Callable[[], Settings]) -> int:
    """Runs the gate until SIGTERM or SIGINT.

    Args:
        settings: what to do.
        read_again: gives the settings as they are later; raises SettingsError.

    Returns:
        the process's exit code: 0 after a signal or when the settings changed so that it has to
        start anew, 1 when it can't start or a part of it ended.
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
        code = parts.run(read_again)
        server.shutdown()
    return code


class _Parts:
    """What runs, and how it is known to run."""

    def __init__(self, settings: Settings, api: connection.Connection) -> None:
        self._gate = gate = settings.gate
        self.counters = metrics.Metrics()
        self._refused = ""
        self._view = view.View()
        nodes, pods, objects = sources.nodes(gate), sources.pods(gate), sources.fabric_nodes(gate)
        self._leader = leader.Leader(api, gate.namespace, self._view.wake)
        crew = hands.Hands(
            taints.Writer(
                api, nodes.read, key=gate.taint_key, selector=nodes.query["labelSelector"]
            ),
            fabricnodes.Writer(api, gate.namespace),
            events.Events(api, gate.namespace, self.counters),
            self.counters,
            self._view.wake,
        )
        self._keeper = keeper.Keeper(
            self._view, self._leader, crew, sources.orders(gate), self.counters
        )
        node_watch = watch.Watch(api, nodes, self._view.nodes, self.counters)
        pod_watch = watch.Watch(api, pods, self._view.pods, self.counters)
        object_watch = watch.Watch(api, objects, self._view.fabric_nodes, self.counters)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("nodes", node_watch.run),
                ("pods", pod_watch.run),
                ("fabricnodes", object_watch.run),
                ("leader", self._leader.run),
                ("keeper", self._keeper.run),
            )
        ]

    def run(self, read_again: Callable[[], Settings]) -> int:
        """Runs all parts until a signal comes, one of them ends, or it has to start anew; the exit code."""
        for thread in self._threads:
            thread.start()
        code, look_at = None, time.monotonic() + _SETTINGS_SECONDS
        while code is None and signal.sigtimedwait(_SIGNALS, 1.0) is None:
            if ended := self._ended():
                _log.critical("the gate ends, to be started again: %s", ended)
                code = 1
            elif time.monotonic() >= look_at:
                look_at = time.monotonic() + _SETTINGS_SECONDS
                if not self._follow(read_again):
                    code = 0
        _log.info("the gate stops; its taints stay")
        self._keeper.stop()
        self._threads[-1].join(_LAST_WRITE_SECONDS)
        self._leader.resign()
        return code or 0

    def _follow(self, read_again: Callable[[], Settings]) -> bool:
        """Takes over settings that changed; false when that needs a new start. Wrong ones change nothing."""
        try:
            gate = read_again().gate
        except SettingsError as error:
            if self._refused != str(error):
                _log.error("the settings in force stay: %s", error)
            self._refused = str(error)
            self.counters.settings_refused.set(1)
            return True
        self._refused = ""
        self.counters.settings_refused.set(0)
        if gate == self._gate:
            return True
        if _without_orders(gate) != _without_orders(self._gate):
            _log.info("the settings changed so that the gate has to start anew")
            return False
        self._gate = gate
        self._keeper.order(sources.orders(gate))
        return True

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


def _without_orders(gate: GateSettings) -> GateSettings:
    """The settings apart from what may change while the gate runs."""
    default = GateSettings()
    return msgspec.structs.replace(
        gate,
        mode=default.mode,
        absence_grace_seconds=default.absence_grace_seconds,
        stable_seconds=default.stable_seconds,
        breaker=default.breaker,
    )
