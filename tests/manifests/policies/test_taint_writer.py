"""Another controller that may take our taint off, and nothing else of ours by RBAC's leave alone."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import cache, controlplane
from tests.manifests import callers
from tests.manifests.conftest import FOLDER

_ACCOUNT = {"name": "policies-nrc", "namespace": "default"}
_API = "rbac.authorization.k8s.io"


@pytest.fixture
def controller(apiserver: controlplane.ApiServer) -> Iterator[callers.Caller]:
    """A controller that may write nodes, as node-readiness-controller may."""
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    metadata = {"name": _ACCOUNT["name"]}
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _ACCOUNT},
        {"apiVersion": f"{_API}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        _binding(_ACCOUNT["name"], _ACCOUNT["name"]),
    ):
        apiserver.apply(json.dumps(body))
    yield callers.with_token(apiserver, apiserver.token(_ACCOUNT["name"], "default"))
    for kind, name in (
        ("clusterrolebinding", _ACCOUNT["name"]),
        ("clusterrolebinding", "fabric-taint-writer"),
        ("clusterrole", "fabric-taint-writer"),
    ):
        apiserver.kubectl("delete", kind, name, "--ignore-not-found")


def _binding(name: str, role: str) -> dict[str, object]:
    return {
        "apiVersion": f"{_API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", **_ACCOUNT}],
    }


def test_the_shipped_role_lets_another_controller_write_the_taint(
    apiserver: controlplane.ApiServer, controller: callers.Caller, node: str
) -> None:
    """Without it the taint comes and stays; with it, it comes and goes."""
    ours = {"key": callers.KEY, "value": "unverified", "effect": "NoSchedule"}
    callers.write_taints(controller, node, callers.OTHERS, ours)
    with pytest.raises(cache.RigError, match="taken off, by agent, gate and those"):
        callers.write_taints(controller, node, callers.OTHERS)
    file = FOLDER / "components/node-readiness-controller/taint-writer.yaml"
    apiserver.kubectl("apply", "--server-side", "--filename", str(file))
    apiserver.apply(json.dumps(_binding("fabric-taint-writer", "fabric-taint-writer")))
    callers.write_taints(controller, node, callers.OTHERS)
    callers.write_taints(controller, node, callers.OTHERS, ours)
