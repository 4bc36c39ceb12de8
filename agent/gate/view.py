"""What the watches have seen, and which nodes it concerns: the gate's picture of the cluster.

The watches write from their own threads, the loop reads. A node is marked as changed only when its
record changed, so a heartbeat of a kubelet costs nothing beyond reading it.
"""

import threading
from collections.abc import Mapping
from typing import Generic, TypeVar

from agent.gate.records import AgentPod, FabricNode, NodeView

R = TypeVar("R", NodeView, AgentPod, FabricNode)


class Mirror(Generic[R]):
    """The records of one collection, as its watch last saw them.

    `current` holds while what the API server has is what is here, give or take the delay of an open
    watch. A mirror starts blind.
    """

    def __init__(self, view: "View") -> None:
        self._view = view
        self.records: dict[str, R] = {}
        self.current = False

    def replace(self, records: Mapping[str, R]) -> None:
        """Takes over a complete list: what is not in it is gone."""
        with self._view.lock:
            for name in self.records.keys() | records.keys():
                self._set(name, records.get(name))

    def put(self, record: R) -> None:
        """Takes over one object, new or changed."""
        with self._view.lock:
            self._set(record.name, record)

    def drop(self, name: str) -> None:
        """Forgets one object."""
        with self._view.lock:
            self._set(name, None)

    def sight(self, *, current: bool) -> None:
        """Says whether changes are being seen."""
        with self._view.lock:
            if self.current != current:
                self.current = current
                self._view.sight_changed()

    def _set(self, name: str, new: R | None) -> None:
        old = self.records.get(name)
        if new is not None:
            self.records[name] = new  # if it means the same, its version is newer
        elif old is not None:
            del self.records[name]
        if old != new:
            self._view.changed(old, new)


class View:
    """Nodes of the pool, the agents on them, and the gate's own objects about them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bell = threading.Condition(self.lock)
        self.nodes: Mirror[NodeView] = Mirror(self)
        self.pods: Mirror[AgentPod] = Mirror(self)
        self.fabric_nodes: Mirror[FabricNode] = Mirror(self)
        self._ready: dict[str, set[str]] = {}
        self._changed: set[str] = set()
        self._rung = False

    @property
    def current(self) -> bool:
        """Whether all watches see."""
        return self.nodes.current and self.pods.current and self.fabric_nodes.current

    def node(self, name: str) -> NodeView | None:
        """The node as last seen, None when it is not in the pool."""
        with self.lock:
            return self.nodes.records.get(name)

    def fabric_node(self, name: str) -> FabricNode | None:
        """The FabricNode of that name, None without one."""
        with self.lock:
            return self.fabric_nodes.records.get(name)

    def names(self) -> set[str]:
        """All nodes of the pool, and those that have a FabricNode."""
        with self.lock:
            return self.nodes.records.keys() | self.fabric_nodes.records.keys()

    def agent_ready(self, node: str) -> bool:
        """Whether a ready agent is on that node."""
        with self.lock:
            return bool(self._ready.get(node))

    def wait(self, seconds: float) -> set[str]:
        """The nodes that changed since the last call; waits for one, or for sight, that long."""
        with self._bell:
            if not self._rung:
                self._bell.wait(seconds)
            changed, self._changed, self._rung = self._changed, set(), False
            return changed

    def wake(self) -> None:
        """Ends a wait."""
        with self._bell:
            self._rung = True
            self._bell.notify_all()

    def sight_changed(self) -> None:
        """A mirror went blind or began to see. Called with the lock held."""
        self.wake()

    def changed(
        self,
        old: NodeView | AgentPod | FabricNode | None,
        new: NodeView | AgentPod | FabricNode | None,
    ) -> None:
        """A record changed. Called with the lock held."""
        for record in (old, new):
            if isinstance(record, AgentPod):
                self._count(record, ready=record is new and record.ready)
            elif record is not None:
                self._changed.add(record.name)
        self.wake()

    def _count(self, pod: AgentPod, *, ready: bool) -> None:
        names = self._ready.setdefault(pod.node, set())
        if ready:
            names.add(pod.name)
        else:
            names.discard(pod.name)
        if not names:
            del self._ready[pod.node]
        self._changed.add(pod.node)
