"""Writes the gate's taint on a Node and takes it off, touching nobody else's.

`spec.taints` is one atomic list to the API server: whoever writes it from an old copy drops what
others added since. So each write changes one element by a JSON patch that holds only for exactly the
version that was seen, and looks anew when somebody was faster.
"""

import datetime as dt
import enum
import urllib.parse
from collections.abc import Callable
from typing import Any

from agent.cluster import connection, errors
from agent.gate import records
from agent.gate.decision import Decision
from agent.gate.records import NodeView

# Few: whoever writes a node that often is left alone for a moment, and tried again later.
ATTEMPTS = 5
NODES = "/api/v1/nodes"

Operation = dict[str, Any]


class Written(enum.StrEnum):
    """What became of a write."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """The node was so already: somebody else wrote it."""
    OUTDATED = "outdated"
    """The reason to write was gone when the node was looked at again."""
    GONE = "gone"
    """There is no such node in the pool any more."""


def operations(node: NodeView, key: str, value: str | None, now: float) -> list[Operation]:
    """The JSON patch that brings our taint onto a node with that value, or off it.

    Args:
        node: the node as seen.
        key: the taint's key.
        value: the taint's value, None for no taint.
        now: seconds since 1970; what the taint says about its age, which it keeps when its value
            changes.

    Returns:
        no operation when the node is already so. The first operation is the precondition.
    """
    if value == node.taint:
        return []
    precondition = {"op": "test", "path": "/metadata/resourceVersion", "value": node.version}
    ours = f"/spec/taints/{node.taint_index}"
    if value is None:
        return [precondition, {"op": "remove", "path": ours}]
    since = now if node.taint_since is None else node.taint_since
    stamp = dt.datetime.fromtimestamp(since, dt.UTC).isoformat(timespec="seconds")
    added = {"timeAdded": stamp.replace("+00:00", "Z")}
    wanted = {"key": key, "value": value, "effect": records.TAINT_EFFECT, **added}
    if node.taint is not None:
        return [precondition, {"op": "replace", "path": ours, "value": wanted}]
    if node.taint_count:
        return [precondition, {"op": "add", "path": "/spec/taints/-", "value": wanted}]
    # A Node that is served has a spec, if an empty one.
    return [precondition, {"op": "add", "path": "/spec/taints", "value": [wanted]}]


class Writer:
    """Writes one taint key on the nodes that a label selector chooses."""

    def __init__(
        self,
        api: connection.Connection,
        read: Callable[[object], NodeView | None],
        *,
        key: str,
        selector: str,
    ) -> None:
        self._api = api
        self._read = read
        self._key = key
        self._selector = selector

    def settle(
        self, node: NodeView, said: Decision, decide: Callable[[NodeView], Decision], now: float
    ) -> Written:
        """Makes a node's taint what was decided.

        Args:
            node: the node that it was decided about.
            said: the decision.
            decide: asked again for each fresh copy, so that what is written fits what is there.
            now: seconds since 1970.

        Raises:
            Conflict: others wrote the node each time in between, or it may not become so (which
                the API server does not tell apart); nothing was written.
            Unreachable, Refused, Throttled: the API server did not do it; nothing was written, or
                (Unreachable) it may have been.
        """
        attempts = 0
        while True:
            attempts += 1
            try:
                self._patch(node, said.wanted, now)
            except errors.Conflict:
                if attempts == ATTEMPTS:
                    raise
            else:
                return Written.DONE
            fresh = self.find(node.name)
            if fresh is None:
                return Written.GONE
            if fresh.taint == said.wanted:
                return Written.UNCHANGED
            if decide(fresh).wanted != said.wanted:
                return Written.OUTDATED
            node = fresh

    def release(self, name: str) -> Written:
        """Takes our taint off a node that is not in the pool any more.

        Raises:
            ApiError: any of its kinds.
        """
        if self.find(name) is not None:
            return Written.OUTDATED
        try:
            node = self._read(self._api.get(_path(name)))
            if node is None or node.taint is None:
                return Written.UNCHANGED
            self._patch(node, None, 0.0)
        except errors.Conflict as error:
            if error.gone:
                return Written.GONE
            raise
        return Written.DONE

    def find(self, name: str) -> NodeView | None:
        """The node as it is, None when it is not in the pool; the server decides which label fits.

        Raises:
            ApiError: any of its kinds.
        """
        query = {"fieldSelector": f"metadata.name={name}", "labelSelector": self._selector}
        answer = self._api.get(NODES, query)
        items = answer.get("items") if isinstance(answer, dict) else None
        return self._read(items[0]) if items else None

    def _patch(self, node: NodeView, value: str | None, now: float) -> None:
        patch = operations(node, self._key, value, now)
        if patch:
            self._api.json_patch(_path(node.name), patch)


def _path(name: str) -> str:
    return f"{NODES}/{urllib.parse.quote(name, safe='')}"
