"""Nodes and agent pods as a real API server holds them, written the way kubelet and agent do."""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from kubernetes import client, config

from agent.cluster import connection, errors
from agent.gate import fabricnodes, records
from tests.cluster import controlplane

KEY = "readiness.k8s.io/FabricReady"
POOL = "fabric-readiness.dev/pool"
AGENT = "app.kubernetes.io/name=fabric-agent"
BOOT = "11111111-aaaa-4444-8888-000000000001"
NEXT_BOOT = "22222222-bbbb-4444-8888-000000000002"
OTHERS = {"key": "example.org/maintenance", "value": "soon", "effect": "NoExecute"}


def connect(api: controlplane.ApiServer) -> connection.Connection:
    """A connection that may do anything."""
    configuration = client.Configuration()
    config.load_kube_config(
        config_file=str(api.admin_kubeconfig), client_configuration=configuration
    )  # type: ignore[no-untyped-call]
    return connection.Connection(configuration)


class Pool:
    """A pool of bare nodes of one test, under names and a label value of its own."""

    def __init__(self, api: controlplane.ApiServer) -> None:
        self.api = api
        self.connection = connect(api)
        self.id = uuid.uuid4().hex[:8]
        self.label = f"{POOL}-{self.id}"  # a key of its own: tests share the API server
        self.namespace = f"gate-{self.id}"
        self._nodes: list[str] = []
        for kind, metadata in (
            ("Namespace", {"name": self.namespace}),
            ("ServiceAccount", {"name": "default", "namespace": self.namespace}),
        ):
            api.apply(json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata}))

    def add(self, name: str = "a", taints: list[dict[str, str]] | None = None) -> str:
        """Creates a node of the pool as a kubelet registers it; its full name."""
        full = f"node-{name}-{self.id}"
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": full, "labels": {self.label: "rig"}},
        }
        self.connection.create("/api/v1/nodes", node)
        self._nodes.append(full)
        # The API server adds not-ready at creation, and here is no controller to take it away.
        asked = [{"op": "add", "path": "/spec/taints", "value": taints or []}]
        self.connection.json_patch(f"/api/v1/nodes/{full}", asked)
        self.report_boot(full, BOOT)
        return full

    def report_boot(self, node: str, boot: str) -> None:
        """What a kubelet writes after a boot."""
        self._patch_status(node, {"status": {"nodeInfo": {"bootID": boot}}})

    def report(
        self, node: str, status: str, reason: str, *, boot: str = BOOT, rung: str = ""
    ) -> None:
        """What an agent writes: the condition, and in which boot the node was proven."""
        condition = {"type": records.CONDITION, "status": status, "reason": reason, "message": "m"}
        annotations = {records.VERIFIED_BOOT_ID: boot, records.BLOCKED_RUNG: rung}
        body = {"metadata": {"annotations": annotations}, "status": {"conditions": [condition]}}
        self._patch_status(node, body)

    def agent(self, node: str, *, ready: bool) -> None:
        """An agent's pod on the node, ready or not."""
        pod = f"agent-{node}"
        if "pod/" not in self.api.kubectl(
            "get", "pod", pod, "--namespace", self.namespace, "--ignore-not-found", "--output=name"
        ):
            self._create_pod(pod, node)
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        self.api.kubectl(
            "patch", "pod", pod, "--namespace", self.namespace, "--subresource=status",
            "--type=strategic", "--patch", json.dumps(status),
        )  # fmt: skip

    def remove_agent(self, node: str) -> None:
        """The agent's pod is deleted at once."""
        self.api.kubectl(
            "delete", "pod", f"agent-{node}", "--namespace", self.namespace,
            "--grace-period=0", "--force",
        )  # fmt: skip

    def get(self, node: str) -> dict[str, Any]:
        """The node as it is."""
        answer: dict[str, Any] = self.connection.get(f"/api/v1/nodes/{node}")
        return answer

    def taints(self, node: str) -> list[dict[str, str]]:
        """The node's taints, in their order."""
        found: list[dict[str, str]] = self.get(node)["spec"].get("taints", [])
        return found

    def view(self, node: str) -> records.NodeView:
        """The node as the gate sees it."""
        seen = records.node_view(self.get(node), KEY, self.label)
        assert seen is not None
        return seen

    def taint(self, node: str) -> str | None:
        """The value of the gate's taint on the node, None without one."""
        return self.view(node).taint

    def fabric_node(self, node: str) -> dict[str, Any] | None:
        """The node's FabricNode, None without one."""
        try:
            found: dict[str, Any] = self.connection.get(f"{fabricnodes.PATH}/{node}")
        except errors.Conflict:
            return None
        return found

    def override(self, node: str, reason: str, until: str) -> None:
        """What a human writes to open a node."""
        spec = {"spec": {"override": {"reason": reason, "until": until}}}
        self.api.kubectl("patch", "fabricnode", node, "--type=merge", "--patch", json.dumps(spec))

    def events(self, node: str) -> list[tuple[str, str]]:
        """Reason and message of the events about the node, oldest first."""
        answer = self.connection.get(
            "/api/v1/namespaces/default/events", {"fieldSelector": f"involvedObject.name={node}"}
        )
        items = sorted(answer["items"], key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [(item["reason"], item["message"]) for item in items]

    def remove(self, node: str) -> None:
        """Deletes a node."""
        self.api.kubectl("delete", "node", node)
        self._nodes.remove(node)

    def clear(self) -> None:
        """Deletes all that the test made."""
        for node in list(self._nodes):
            self.remove(node)
            # Here is no garbage collector.
            self.api.kubectl("delete", "fabricnode", node, "--ignore-not-found")

    def _create_pod(self, name: str, node: str) -> None:
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {"app.kubernetes.io/name": "fabric-agent"},
        }
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "agent", "image": "none.invalid/none"}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.api.apply(json.dumps(pod))

    def _patch_status(self, node: str, body: dict[str, Any]) -> None:
        self.api.kubectl(
            "patch", "node", node, "--subresource=status", "--type=strategic",
            "--patch", json.dumps(body),
        )  # fmt: skip


@contextlib.contextmanager
def pool(api: controlplane.ApiServer) -> Iterator[Pool]:
    """A pool that is gone afterwards."""
    made = Pool(api)
    try:
        yield made
    finally:
        made.clear()


@contextlib.contextmanager
def hammer(api: controlplane.ApiServer, node: str, key: str) -> Iterator[list[str]]:
    """Adds and removes a taint of its own as another controller does: read, then write what was read.

    Yields a list that gets, for each write, what had been lost of its own since the last one.
    """
    stop = threading.Event()
    said: list[str] = []
    connection = connect(api)
    mine: dict[str, Any] = {"key": key, "effect": "NoSchedule"}

    def run() -> None:
        there = False
        while not stop.is_set():
            raw = connection.get(f"/api/v1/nodes/{node}")
            found = raw["spec"].get("taints", [])
            has = any(taint["key"] == key for taint in found)
            kept = [taint for taint in found if taint["key"] != key]
            version = raw["metadata"]["resourceVersion"]
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/spec/taints", "value": kept if has else [mine, *kept]},
            ]
            try:
                connection.json_patch(f"/api/v1/nodes/{node}", patch)
            except errors.Conflict:
                continue
            said.append("" if has == there else json.dumps(found))
            there = not has

    thread = threading.Thread(target=run, name="hammer")
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(30)
