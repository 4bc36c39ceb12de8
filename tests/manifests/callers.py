"""Who writes to the API server in the tests of the policies, and what."""

import json
import pathlib
import uuid
from typing import Any

from kubernetes import client, config

from agent.cluster import connection
from tests.cluster import cache, controlplane, processes

NAMESPACE = "fabric-readiness"
KEY = "readiness.k8s.io/FabricReady"
AUTOSCALER_KEY = "startup-taint.cluster-autoscaler.kubernetes.io/FabricReady"
PREFIX = "fabric-readiness.dev"
OTHERS = {"key": "example.org/others", "value": "x", "effect": "NoSchedule"}
EFFECT_SECONDS = 30
_RBAC = "rbac.authorization.k8s.io"


class Caller:
    """Somebody with a token, or with a client certificate."""

    def __init__(self, api: controlplane.ApiServer, *flags: str) -> None:
        self._api = api
        self._flags = flags

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as this one."""
        return processes.run(
            self._api.programs / "kubectl", *self._flags, *arguments, stdin=stdin, timeout=60
        )

    def status(self, kind: str, name: str, body: dict[str, Any], *more: str) -> str:
        """Patches a status."""
        how = ("--type=strategic",) if kind == "node" and not more else more or ("--type=merge",)
        return self.kubectl(
            "patch", kind, name, "--subresource=status", *how, "--patch", json.dumps(body)
        )

    def create(self, body: dict[str, Any]) -> str:
        """Creates an object."""
        return self.kubectl("create", "--filename", "-", stdin=json.dumps(body))


class Kubelet(Caller):
    """The kubelet of a node. It may not read the status that it writes, which kubectl wants to."""

    def __init__(self, api: controlplane.ApiServer, path: pathlib.Path) -> None:
        super().__init__(api, "--kubeconfig", str(path))
        configuration = client.Configuration()
        config.load_kube_config(config_file=str(path), client_configuration=configuration)  # type: ignore[no-untyped-call]
        self._connection = connection.Connection(configuration)

    def report(self, name: str, body: dict[str, Any]) -> None:
        """Patches its node's status."""
        path, kind = f"/api/v1/nodes/{name}/status", "application/strategic-merge-patch+json"
        self._connection._send("PATCH", path, body, kind)


def with_token(api: controlplane.ApiServer, token: str) -> Caller:
    """Whoever has that token."""
    return Caller(
        api, "--kubeconfig=/dev/null", "--server", api.url,
        "--certificate-authority", str(api.ca_file), "--token", token,
    )  # fmt: skip


def create_node(apiserver: controlplane.ApiServer, name: str = "") -> str:
    """A node of the pool as its kubelet left it; its name."""
    name = name or f"policy-{uuid.uuid4().hex[:8]}"
    metadata = {
        "name": name,
        "labels": {f"{PREFIX}/pool": "rig", "example.org/l": "1"},
        "annotations": {"example.org/a": "1"},
    }
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    apiserver.apply(json.dumps(body))
    # The API server adds not-ready at creation, and here is no controller to take it away.
    taints = json.dumps([{"op": "add", "path": "/spec/taints", "value": [OTHERS]}])
    apiserver.kubectl("patch", "node", name, "--type=json", "--patch", taints)
    status = {
        "capacity": {"cpu": "8"},
        "nodeInfo": {"bootID": "b1"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }
    apiserver.kubectl(
        "patch", "node", name, "--subresource=status", "--type=strategic",
        "--patch", json.dumps({"status": status}),
    )  # fmt: skip
    return name


def fabric_node(apiserver: controlplane.ApiServer, node: str) -> dict[str, Any]:
    """The node's FabricNode as the gate makes it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid_of(apiserver, node)}
    return {
        "apiVersion": f"{PREFIX}/v1alpha1",
        "kind": "FabricNode",
        "metadata": {"name": node, "ownerReferences": [owner]},
    }


def uid_of(apiserver: controlplane.ApiServer, node: str) -> str:
    """The Node's uid."""
    return apiserver.kubectl("get", "node", node, "--output=jsonpath={.metadata.uid}")


def kubelet_of(apiserver: controlplane.ApiServer, node: str, folder: pathlib.Path) -> Kubelet:
    """The kubelet of a node that need not be there yet."""
    path = folder / f"{node}.kubeconfig"
    apiserver.write_kubeconfig(path, f"system:node:{node}", "system:nodes")
    return Kubelet(apiserver, path)


def node_writer(apiserver: controlplane.ApiServer) -> Caller:
    """A controller that may write nodes, and knows nothing of us."""
    name = "policies-other"
    account = {"name": name, "namespace": "default"}
    resources = {"apiGroups": [""], "resources": ["nodes", "nodes/status"]}
    rule = {**resources, "verbs": ["get", "patch", "update"]}
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [rule],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ):
        apiserver.apply(json.dumps(body))
    return with_token(apiserver, apiserver.token(name, "default"))


def register(kubelet: Caller, name: str, *taints: dict[str, str], **labels: str) -> None:
    """Creates a Node of the pool, as a kubelet does that starts for the first time."""
    metadata = {"name": name, "labels": {f"{PREFIX}/pool": "rig", **labels}}
    kubelet.create(
        {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": list(taints)}}
    )


def live(apiserver: controlplane.ApiServer, folder: pathlib.Path) -> None:
    """A kubelet registers with its startup taint, reports, and renews its lease."""
    name = f"policy-{uuid.uuid4().hex[:8]}"
    kubelet = kubelet_of(apiserver, name, folder)
    register(kubelet, name, {"key": KEY, "value": "unverified", "effect": "NoSchedule"})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    kubelet.report(name, {"status": {"conditions": [ready], "capacity": {"cpu": "8"}}})
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    }
    kubelet.create(lease)
    apiserver.kubectl("delete", "node", name)


def write_taints(caller: Caller, node: str, *taints: dict[str, str]) -> str:
    """Replaces the node's list of taints."""
    patch = json.dumps([{"op": "add", "path": "/spec/taints", "value": list(taints)}])
    return caller.kubectl("patch", "node", node, "--type=json", "--patch", patch)


def condition(**changes: object) -> dict[str, Any]:
    """A patch with our condition, changed."""
    condition = {"type": "FabricReady", "status": "False", "reason": "PortDown", "message": "m"}
    return {"status": {"conditions": [condition | changes]}}


def metadata_of(**fields: dict[str, str | None]) -> dict[str, Any]:
    """A patch of metadata."""
    return {"metadata": fields}


def event_about(about: dict[str, str]) -> dict[str, Any]:
    """An Event about an object."""
    name = f"policy.{uuid.uuid4().hex}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": about,
        "reason": "PortDown",
        "type": "Warning",
    }


GOOD_REPORT = {
    **condition(),
    **metadata_of(
        labels={f"{PREFIX}/verified": "false"},
        annotations={
            f"{PREFIX}/verified-boot-id": "b1",
            f"{PREFIX}/profile-hash": "0" * 12,
            f"{PREFIX}/blocked-rung": "driver",
        },
    ),
}


def is_refused(caller: Caller, *arguments: str) -> bool:
    """Whether a policy refuses a call."""
    try:
        caller.kubectl(*arguments, "--overwrite", "--dry-run=server")
    except cache.RigError as error:
        return "ValidatingAdmissionPolicy" in str(error)
    return False
