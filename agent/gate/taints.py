"""Writes the gate's taint on a Node and takes it off, touching nobody else's.

`spec.taints` is one atomic list to the API server: whoever writes it from an old copy drops what
others added since. So each write reads the node anew, changes one element by a JSON patch that
holds only for exactly the version that was read, and starts over when somebody was faster.
"""

import enum
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from agent.cluster import connection, errors
from agent.gate import records
from agent.gate.decision import Decision
from agent.gate.records import NodeView

# Few: whoever writes a node that often is left alone for a moment, and tried again later.
ATTEMPTS = 5

Operation = dict[str, Any]


class Written(enum.StrEnum):
    """What became of a write."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """The fresh node needs nothing: somebody wrote it, or the reason is gone."""
    GONE = "gone"
    """There is no such node in the pool any more."""


def operations(node: Mapping[str, Any], key: str, value: str | None) -> list[Operation]:
    """The JSON patch that brings our taint into a Node's JSON with that value, or out of it.

    Args:
        node: the Node as read just now, with its resourceVersion.
        key: the taint's key.
        value: the taint's value, None for no taint.

    Returns:
        no operation when the node is already so. The first operation is the precondition.
    """
    taints = records.taints_of(node)
    change = _change(node, taints, key, value)
    if not change:
        return []
    version = node["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, change]


def _change(node: Mapping[str, Any], taints: list[Any], key: str, value: str | None) -> Operation:
    ours = next((i for i, taint in enumerate(taints) if records.is_ours(taint, key)), None)
    if value is None:
        return {} if ours is None else {"op": "remove", "path": f"/spec/taints/{ours}"}
    # No timeAdded: it belongs to NoExecute.
    wanted = {"key": key, "value": value, "effect": records.TAINT_EFFECT}
    if ours is not None:
        if records.our_taint(taints, key) == value:
            return {}
        return {"op": "replace", "path": f"/spec/taints/{ours}", "value": wanted}
    if taints:
        return {"op": "add", "path": "/spec/taints/-", "value": wanted}
    if isinstance(node.get("spec"), dict):
        return {"op": "add", "path": "/spec/taints", "value": [wanted]}
    return {"op": "add", "path": "/spec", "value": {"taints": [wanted]}}


class Writer:
    """Writes one taint key on the nodes of one pool."""

    def __init__(self, api: connection.Connection, *, key: str, pool_label: str) -> None:
        self._api = api
        self._key = key
        self._pool_label = pool_label

    def settle(
        self, name: str, decide: Callable[[NodeView], Decision]
    ) -> tuple[Written, Decision | None]:
        """Makes a node's taint what the decision about the node, as it is now, says.

        Args:
            name: the node.
            decide: asked for each fresh copy, so that what is written fits what is there.

        Returns:
            what became of it, and the decision about the last fresh copy, if there was one.

        Raises:
            Conflict: others wrote the node each time in between, or it may not become so (which
                the API server does not tell apart); nothing was written.
            Unreachable, Refused, Throttled: the API server did not do it; nothing was written, or
                (Unreachable) it may have been.
        """
        path = f"/api/v1/nodes/{urllib.parse.quote(name, safe='')}"
        decision = None
        attempts = 0
        while True:
            attempts += 1
            try:
                node = self._api.get(path)
                seen = self._seen(node)
                if seen is None:
                    return Written.GONE, decision
                decision = decide(seen)
                patch = operations(node, self._key, decision.value if decision.taint else None)
                if not patch:
                    return Written.UNCHANGED, decision
                self._api.json_patch(path, patch)
            except errors.Conflict as error:
                if error.gone:
                    return Written.GONE, decision
                if attempts == ATTEMPTS:
                    raise
            else:
                return Written.DONE, decision

    def _seen(self, node: object) -> NodeView | None:
        """What was answered, None when it is no node of ours."""
        view = records.node_view(node, self._key)
        return view if view and records.has_label(node, self._pool_label) else None
