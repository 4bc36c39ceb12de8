"""What the policies of the agent let through and what they stop."""

import json
from typing import Any

import pytest

from tests.cluster import cache, controlplane
from tests.manifests import callers
from tests.manifests.conftest import Manifests


@pytest.fixture
def agent(apiserver: controlplane.ApiServer, base: Manifests, node: str) -> callers.Caller:
    """The agent on the node, with the token of its pod."""
    spec = base["DaemonSet", "fabric-agent"]["spec"]["template"]["spec"]
    metadata = {"name": node, "namespace": callers.NAMESPACE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    apiserver.apply(json.dumps({**pod, "spec": {**spec, "nodeName": node}}))
    token = apiserver.kubectl(
        "create", "token", "fabric-agent", "--namespace", callers.NAMESPACE,
        "--bound-object-kind=Pod", "--bound-object-name", node,
    )  # fmt: skip
    return callers.with_token(apiserver, token.strip())


def test_agent_reports_its_own_node(
    apiserver: controlplane.ApiServer, agent: callers.Caller, node: str
) -> None:
    """Condition, label and annotations, again with other values; and into its FabricNode."""
    agent.status("node", node, callers.GOOD_REPORT)
    agent.status("node", node, callers.condition(status="True", reason="FabricVerified"))
    agent.status("node", node, callers.condition(type="FabricTransport"))
    agent.status("node", node, callers.condition(message="x" * 1024))
    agent.status("fabricnode", node, {"status": {"outcome": "pass", "bootID": "b1"}})
    about = {"kind": "Node", "name": node, "uid": callers.uid_of(apiserver, node)}
    agent.create(callers.event_about(about))
    kept = json.loads(apiserver.kubectl("get", "node", node, "--output=json"))
    assert {"Ready", "FabricReady", "FabricTransport"} == {
        one["type"] for one in kept["status"]["conditions"]
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (callers.condition(type="Ready"), "conditions FabricReady and FabricTransport only"),
        (
            callers.condition(type="FabricReadyToo"),
            "conditions FabricReady and FabricTransport only",
        ),
        (callers.condition(status="Yes"), "no valid status"),
        (callers.condition(message="x" * 1025), "over 1024"),
        (
            callers.metadata_of(labels={f"{callers.PREFIX}/pool": "mine"}),
            f"label {callers.PREFIX}/verified only",
        ),
        (
            callers.metadata_of(labels={f"{callers.PREFIX}/pool": None}),
            f"label {callers.PREFIX}/verified only",
        ),
        (
            callers.metadata_of(labels={f"{callers.PREFIX}/other": "x"}),
            f"label {callers.PREFIX}/verified only",
        ),
        (
            callers.metadata_of(labels={"example.org/l": "2"}),
            f"label {callers.PREFIX}/verified only",
        ),
        (callers.metadata_of(annotations={"example.org/a": None}), "three annotations only"),
        (callers.metadata_of(annotations={f"{callers.PREFIX}/x": "y"}), "three annotations only"),
        (
            callers.metadata_of(annotations={f"{callers.PREFIX}/profile-hash": "x" * 129}),
            "at most 128 characters",
        ),
        ({"status": {"capacity": {"cpu": "9"}}}, "what the kubelet says"),
        ({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, "what the kubelet says"),
        ({"status": {"nodeInfo": {"bootID": "b2"}}}, "what the kubelet says"),
        (
            {"status": {"addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]}},
            "what the kube",
        ),
        (callers.metadata_of(finalizers=["example.org/f"]), "owners or finalizers"),  # type: ignore[arg-type]
    ],
)
def test_agent_writes_nothing_else_of_its_node(
    agent: callers.Caller, node: str, body: dict[str, Any], words: str
) -> None:
    """Exact names, bounded texts, and nothing that is the kubelet's or an admin's."""
    with pytest.raises(cache.RigError, match=words):
        agent.status("node", node, body)


def test_agent_that_would_drop_the_kubelets_conditions_is_stopped(
    agent: callers.Caller, node: str
) -> None:
    """A JSON merge patch replaces the list of conditions: the accident that takes Ready away."""
    with pytest.raises(cache.RigError, match="conditions FabricReady and FabricTransport only"):
        agent.status("node", node, callers.condition(), "--type=merge")


def test_agent_touches_no_spec_and_no_other_object(
    apiserver: controlplane.ApiServer, agent: callers.Caller, node: str
) -> None:
    """Not its node's spec, not another node, another FabricNode, the spec of its own, or others' events."""
    other = callers.create_node(apiserver)
    apiserver.apply(json.dumps(callers.fabric_node(apiserver, other)))
    spec = json.dumps({"spec": {"unschedulable": True}})
    override = json.dumps({"spec": {"override": {"reason": "x", "until": "2099-01-01T00:00:00Z"}}})
    with pytest.raises(cache.RigError, match="nodes/status and nothing else"):
        agent.kubectl("patch", "node", node, "--patch", spec)
    with pytest.raises(cache.RigError, match="nodes/status and nothing else"):
        agent.kubectl("delete", "node", node)
    with pytest.raises(cache.RigError, match=f"the agent on {node} may not write {other}"):
        agent.status("node", other, callers.GOOD_REPORT)
    with pytest.raises(cache.RigError, match=f"may not write FabricNode {other}"):
        agent.status("fabricnode", other, {"status": {"outcome": "fail"}})
    with pytest.raises(cache.RigError, match="status of its FabricNode and nothing else"):
        agent.kubectl("patch", "fabricnode", node, "--type=merge", "--patch", override)
    with pytest.raises(cache.RigError, match="events about its own node only"):
        agent.create(callers.event_about({"kind": "Node", "name": other}))
    with pytest.raises(cache.RigError, match="events about its own node only"):
        agent.create(callers.event_about({"kind": "Pod", "name": node, "namespace": "default"}))
    for kind in ("node", "fabricnode"):
        apiserver.kubectl("delete", kind, other)


def test_agent_repeats_no_condition_and_empties_no_status(agent: callers.Caller, node: str) -> None:
    """A JSON patch can do what a strategic one can't: a second condition of a type, a status without any."""
    [again] = callers.condition(status="True")["status"]["conditions"]
    agent.status("node", node, callers.condition())
    more = [{"op": "add", "path": "/status/conditions/-", "value": again}]
    nothing = [{"op": "replace", "path": "/status", "value": {}}]
    for patch, words in ((more, "has that condition already"), (nothing, "FabricTransport only")):
        with pytest.raises(cache.RigError, match=words):
            agent.kubectl(
                "patch", "node", node, "--subresource=status", "--type=json",
                "--patch", json.dumps(patch),
            )  # fmt: skip


def test_agent_writes_short_events_about_its_own_node_alone(
    apiserver: controlplane.ApiServer, agent: callers.Caller, node: str
) -> None:
    """In either of the two groups that events have; bounded, and with no second object in them."""
    own = callers.event_about({"kind": "Node", "name": node})
    agent.create({**own, "message": "x" * 1024})
    own = callers.event_about({"kind": "Node", "name": node})
    with pytest.raises(cache.RigError, match="over 1024"):
        agent.create({**own, "message": "x" * 1025})
    with pytest.raises(cache.RigError, match="events about its own node only"):
        agent.create({**own, "related": {"kind": "Node", "name": "another"}})
    modern = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": own["metadata"],
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.org/x",
        "reportingInstance": "x",
        "action": "x",
        "reason": "PortDown",
        "type": "Warning",
    }
    with pytest.raises(cache.RigError, match="events about its own node only"):
        agent.create({**modern, "regarding": {"kind": "Node", "name": "another"}})
    agent.create({**modern, "regarding": {"kind": "Node", "name": node}})
    name = own["metadata"]["name"]
    with pytest.raises(cache.RigError, match="create events and nothing else"):
        agent.kubectl("delete", "event", name)
    apiserver.kubectl("delete", "event", name)


def test_agent_of_a_node_that_was_made_anew_writes_nothing(
    apiserver: controlplane.ApiServer, agent: callers.Caller, node: str
) -> None:
    """The same name is not the same node: neither its status, nor its FabricNode, nor events about it."""
    apiserver.kubectl("delete", "node", node)
    apiserver.kubectl("delete", "fabricnode", node)
    callers.create_node(apiserver, node)
    apiserver.apply(json.dumps(callers.fabric_node(apiserver, node)))
    # The deletion of a node does not reach the pod here: no controller runs. Its token names the old uid.
    with pytest.raises(cache.RigError, match="made anew"):
        agent.status("node", node, callers.GOOD_REPORT)
    with pytest.raises(cache.RigError, match="another node of that name"):
        agent.status("fabricnode", node, {"status": {"outcome": "pass"}})
    with pytest.raises(cache.RigError, match="events about its own node only"):
        agent.create(
            callers.event_about(
                {"kind": "Node", "name": node, "uid": callers.uid_of(apiserver, node)}
            )
        )


def test_unbound_token_writes_nothing(apiserver: controlplane.ApiServer, node: str) -> None:
    """A token that names no node is no agent's."""
    unbound = callers.with_token(apiserver, apiserver.token("fabric-agent", callers.NAMESPACE))
    with pytest.raises(cache.RigError, match="names no node"):
        unbound.status("node", node, callers.GOOD_REPORT)
    with pytest.raises(cache.RigError, match="names no node"):
        unbound.status("fabricnode", node, {"status": {"outcome": "pass"}})
    with pytest.raises(cache.RigError, match="names no node"):
        unbound.create(callers.event_about({"kind": "Node", "name": node}))
