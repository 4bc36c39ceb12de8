"""What the two service accounts may do, asked of a real API server: this, and nothing else."""

import json
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from agent.cluster import api, connection, errors, token
from tests.cluster import controlplane
from tests.manifests.conftest import Manifests

NAMESPACE = "fabric-readiness"


@pytest.fixture
def node(apiserver: controlplane.ApiServer) -> Iterator[str]:
    """A bare node."""
    name = f"rights-{uuid.uuid4().hex[:8]}"
    _create_node(apiserver, name)
    yield name
    apiserver.kubectl("delete", "node", name)


@pytest.fixture
def agent(
    apiserver: controlplane.ApiServer, base: Manifests, node: str, tmp_path: pathlib.Path
) -> Iterator[api.Api]:
    """The agent's client with the token of a pod of the DaemonSet on the node."""
    spec = base["DaemonSet", "fabric-agent"]["spec"]["template"]["spec"]
    metadata = {"name": node, "namespace": NAMESPACE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    apiserver.apply(json.dumps({**pod, "spec": {**spec, "nodeName": node}}))
    said = apiserver.kubectl(
        "create", "token", spec["serviceAccountName"], "--namespace", NAMESPACE,
        "--bound-object-kind=Pod", "--bound-object-name", node,
    )  # fmt: skip
    (tmp_path / "token").write_text(said)
    server = api.Server(url=apiserver.url, ca_file=apiserver.ca_file)
    made = api.Api(server, token.Token(tmp_path / "token"))
    yield made
    made.close()


def _create_node(apiserver: controlplane.ApiServer, name: str) -> None:
    apiserver.apply(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))


def _get_node(apiserver: controlplane.ApiServer, name: str) -> Any:
    return json.loads(apiserver.kubectl("get", "node", name, "--output", "json"))


def _rights(
    apiserver: controlplane.ApiServer, account: str, namespace: str
) -> set[tuple[str, str, str]]:
    """API group, resource and verb of all that the account may do in a namespace and outside, and
    that not every account may.
    """
    nobody = {"metadata": {"name": "nobody", "namespace": NAMESPACE}}
    apiserver.apply(json.dumps({"apiVersion": "v1", "kind": "ServiceAccount", **nobody}))
    everybody = _listed(apiserver, "nobody", namespace)
    assert everybody
    return _listed(apiserver, account, namespace) - everybody


def _listed(
    apiserver: controlplane.ApiServer, account: str, namespace: str
) -> set[tuple[str, str, str]]:
    configuration = client.Configuration()
    configuration.host = apiserver.url
    configuration.ssl_ca_cert = str(apiserver.ca_file)
    bearer = apiserver.token(account, NAMESPACE)
    configuration.api_key["BearerToken"] = f"Bearer {bearer}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    answer = connection.Connection(configuration).create(path, review)
    return {
        (group, resource, verb)
        for rule in answer["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_token_names_its_node(apiserver: controlplane.ApiServer, node: str, agent: api.Api) -> None:
    """The node claim is what the API server wrote into the token."""
    uid = _get_node(apiserver, node)["metadata"]["uid"]
    assert token.NodeClaim(name=node, uid=uid) == agent.token.node()


def test_agent_may_report(apiserver: controlplane.ApiServer, node: str, agent: api.Api) -> None:
    """Condition, annotation and label go in with one patch; the kubelet's conditions stay."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    apiserver.kubectl(
        "patch", "node", node, "--subresource=status", "--type=strategic",
        "--patch", json.dumps({"status": {"conditions": [ready]}}),
    )  # fmt: skip
    condition = {"type": "FabricReady", "status": "False", "reason": "PortDown", "message": "m"}
    metadata = {
        "uid": agent.token.node().uid,
        "labels": {"fabric-readiness.dev/verified": "false"},
        "annotations": {"fabric-readiness.dev/blocked-rung": "driver"},
    }
    agent.patch_node_status(node, {"metadata": metadata, "status": {"conditions": [condition]}})
    found = _get_node(apiserver, node)
    assert {"Ready": "True", "FabricReady": "False"} == {
        one["type"]: one["status"] for one in found["status"]["conditions"]
    }
    assert "driver" == found["metadata"]["annotations"]["fabric-readiness.dev/blocked-rung"]
    assert "false" == found["metadata"]["labels"]["fabric-readiness.dev/verified"]


def test_recreated_node_is_not_stamped(
    apiserver: controlplane.ApiServer, node: str, agent: api.Api
) -> None:
    """The token's node is the one that the pod was put on; one deleted and made again is another."""
    old = agent.token.node().uid
    apiserver.kubectl("delete", "node", node)
    with pytest.raises(errors.Conflict) as caught:
        agent.patch_node_status(node, {"metadata": {"uid": old}})
    assert caught.value.gone
    _create_node(apiserver, node)
    labels = {"fabric-readiness.dev/verified": "true"}
    with pytest.raises(errors.Conflict) as caught:
        agent.patch_node_status(node, {"metadata": {"uid": old, "labels": labels}})
    assert not caught.value.gone
    assert "fabric-readiness.dev/verified" not in _get_node(apiserver, node)["metadata"].get(
        "labels", {}
    )


def test_agent_may_write_events(
    apiserver: controlplane.ApiServer, node: str, agent: api.Api
) -> None:
    """Events about nodes live in `default`."""
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.1", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node},
        "reason": "PortDown",
        "type": "Warning",
    }
    agent.create_event("default", event)
    selector = f"involvedObject.name={node}"
    said = apiserver.kubectl("get", "events", "--field-selector", selector, "--output=name")
    assert f"event/{node}.1\n" == said
    with pytest.raises(errors.Refused, match='cannot create resource "events"'):
        agent.create_event(NAMESPACE, {**event, "metadata": {"name": "x", "namespace": NAMESPACE}})


@pytest.mark.parametrize(
    ("namespace", "more"), [("default", {("", "events", "create")}), (NAMESPACE, set())]
)
def test_agent_may_do_nothing_else(
    apiserver: controlplane.ApiServer,
    base: Manifests,
    namespace: str,
    more: set[tuple[str, str, str]],
) -> None:
    """Nothing but FabricNodes is read, and of nodes and FabricNodes only the status is written."""
    assert base
    expected = {
        ("", "nodes/status", "patch"),
        ("fabric-readiness.dev", "fabricnodes", "get"),
        ("fabric-readiness.dev", "fabricnodes", "watch"),
        ("fabric-readiness.dev", "fabricnodes/status", "patch"),
        *more,
    }
    assert expected == _rights(apiserver, "fabric-agent", namespace)


@pytest.mark.parametrize(
    ("namespace", "more"),
    [
        ("default", {("", "events", "create")}),
        (
            NAMESPACE,
            {
                ("", "pods", "list"),
                ("", "pods", "watch"),
                ("", "events", "create"),
                ("coordination.k8s.io", "leases", "create"),
                ("coordination.k8s.io", "leases", "get"),
                ("coordination.k8s.io", "leases", "update"),
            },
        ),
    ],
)
def test_gate_may_do_nothing_else(
    apiserver: controlplane.ApiServer,
    base: Manifests,
    namespace: str,
    more: set[tuple[str, str, str]],
) -> None:
    """Nodes seen and patched; its own objects kept; pods of its own namespace seen; events and its Lease written."""
    assert base
    nodes = {("", "nodes", verb) for verb in ("get", "list", "watch", "patch")}
    objects = {
        ("fabric-readiness.dev", "fabricnodes", verb)
        for verb in ("list", "watch", "create", "patch", "delete")
    }
    assert nodes | objects | more == _rights(apiserver, "fabric-gate", namespace)
