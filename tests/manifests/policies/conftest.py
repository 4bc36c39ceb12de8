"""The policies, installed and alone: RBAC stops nobody here."""

import functools
import json
from collections.abc import Iterator

import pytest

from tests.cluster import controlplane, waiting
from tests.manifests import callers
from tests.manifests.conftest import Manifests


@pytest.fixture(scope="module", autouse=True)
def everything_by_rbac(apiserver: controlplane.ApiServer, base: Manifests) -> Iterator[None]:
    """Both accounts may do anything as far as RBAC goes, so that what stops them is a policy."""
    assert base
    accounts = ("fabric-agent", "fabric-gate")
    subjects = [
        {"kind": "ServiceAccount", "name": name, "namespace": callers.NAMESPACE}
        for name in accounts
    ]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "policies-test"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": subjects,
    }
    apiserver.apply(json.dumps(binding))
    caller = callers.with_token(apiserver, apiserver.token("fabric-gate", callers.NAMESPACE))
    node = callers.create_node(apiserver)
    agent = callers.with_token(apiserver, apiserver.token("fabric-agent", callers.NAMESPACE))
    for one in (caller, agent):
        refused = functools.partial(
            callers.is_refused, one, "label", "node", node, "example.org/x=y"
        )
        waiting.until("the policies to act", refused, seconds=callers.EFFECT_SECONDS)
    yield
    apiserver.kubectl("delete", "clusterrolebinding", "policies-test")
    apiserver.kubectl("delete", "node", node)


@pytest.fixture
def node(apiserver: controlplane.ApiServer) -> Iterator[str]:
    """A node of the pool with its FabricNode."""
    name = callers.create_node(apiserver)
    apiserver.apply(json.dumps(callers.fabric_node(apiserver, name)))
    yield name
    for kind in ("node", "fabricnode"):
        apiserver.kubectl("delete", kind, name, "--ignore-not-found")
