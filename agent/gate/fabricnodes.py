"""Each node of the pool has a FabricNode: which it should have, and how it is made so.

The rule (`wanted`) is pure. A node is *adopted* when it was at work before anything here could have
proven it: while the gate only observes, every such node; when it enforces, those that are older than
the installation. An adopted node is closed by a failure and by nothing less, until it reboots.
"""

import dataclasses
import datetime as dt
import urllib.parse
from collections.abc import Mapping
from typing import Any

from agent.cluster import connection
from agent.gate import decision
from agent.gate.records import FabricNode, NodeView

GROUP_VERSION = "fabric-readiness.dev/v1alpha1"
PATH = f"/apis/{GROUP_VERSION}/fabricnodes"
GATE = "fabric-readiness.dev/gate"
"""Label: the namespace of the gate that an object belongs to. Another gate's nodes are not ours to judge."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Who is adopted. `installed_at` is seconds since 1970."""

    enforcing: bool
    installed_at: float


def wanted(node: NodeView, found: FabricNode | None, policy: Policy) -> FabricNode:
    """The FabricNode that a node should have.

    Args:
        node: the node.
        found: the one it has, None without one. What a human wrote into it stays, if it is about
            this very node and not about an earlier one of that name.
        policy: who is adopted.
    """
    same = found is not None and found.owner == node.uid
    if found is None or not same:
        found = FabricNode(name=node.name, owner=node.uid)
    if node.taint is not None or not node.boot_id or decision.proven(node):
        return found
    if policy.enforcing and (same or node.created >= policy.installed_at):
        return found
    return dataclasses.replace(found, adopted_boot_id=node.boot_id)


class Writer:
    """Creates, changes and deletes FabricNodes."""

    def __init__(self, api: connection.Connection, namespace: str) -> None:
        """`namespace` is the gate's own."""
        self._api = api
        self._namespace = namespace

    def create(self, one: FabricNode) -> None:
        """Creates it, owned by its Node, so that it goes with it.

        Raises:
            ApiError: any of its kinds; Conflict where there is one, which may be another gate's.
        """
        owner = {"apiVersion": "v1", "kind": "Node", "name": one.name, "uid": one.owner}
        body = {
            "apiVersion": GROUP_VERSION,
            "kind": "FabricNode",
            "metadata": {
                "name": one.name,
                "labels": {GATE: self._namespace},
                "ownerReferences": [owner],
            },
            "spec": _adopted(one),
        }
        self._api.create(PATH, body)

    def adopt(self, one: FabricNode) -> None:
        """Writes down in which boot the node is taken over as it is.

        Raises:
            ApiError: any of its kinds.
        """
        self._api.merge_patch(_path(one.name), {"spec": _adopted(one)})

    def delete(self, name: str) -> None:
        """Deletes it.

        Raises:
            ApiError: any of its kinds; Conflict of kind `gone` where there is none.
        """
        self._api.delete(_path(name))


def _adopted(one: FabricNode) -> Mapping[str, Any]:
    if not one.adopted_boot_id:
        return {}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"adopted": {"bootID": one.adopted_boot_id, "since": now}}


def _path(name: str) -> str:
    return f"{PATH}/{urllib.parse.quote(name, safe='')}"
