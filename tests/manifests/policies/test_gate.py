"""What the policies of the gate let through and what they stop."""

import json
from typing import Any

import pytest

from tests.cluster import cache, controlplane
from tests.manifests import callers


@pytest.fixture
def gate(apiserver: controlplane.ApiServer) -> callers.Caller:
    """The gate."""
    return callers.with_token(apiserver, apiserver.token("fabric-gate", callers.NAMESPACE))


@pytest.mark.parametrize("key", [callers.KEY, callers.AUTOSCALER_KEY])
def test_gate_writes_its_taint(gate: callers.Caller, node: str, key: str) -> None:
    """On, with another value, and off again, between others'."""
    ours = {"key": key, "value": "driver", "effect": "NoSchedule"}
    callers.write_taints(gate, node, callers.OTHERS, ours)
    callers.write_taints(gate, node, {**ours, "value": "loopback"}, callers.OTHERS)
    callers.write_taints(gate, node, callers.OTHERS)


def test_gate_writes_nothing_else_of_a_node(
    apiserver: controlplane.ApiServer, gate: callers.Caller, node: str
) -> None:
    """No other taint, no other field, no status, no node made or deleted."""
    ours = {"key": callers.KEY, "value": "driver", "effect": "NoSchedule"}
    more = {"key": "example.org/more", "effect": "NoSchedule"}
    for wrong in (
        [ours],
        [callers.OTHERS, more],
        [{**callers.OTHERS, "value": "y"}],
        [callers.OTHERS, {**ours, "effect": "NoExecute"}],
        [callers.OTHERS, {**ours, "key": "readiness.k8s.io/Other"}],
    ):
        with pytest.raises(cache.RigError, match="its own taint only"):
            callers.write_taints(gate, node, *wrong)
    with pytest.raises(cache.RigError, match="nothing of a node's spec but its taint"):
        gate.kubectl("patch", "node", node, "--patch", '{"spec": {"unschedulable": true}}')
    for verb in ("label", "annotate"):
        with pytest.raises(cache.RigError, match="labels, annotations, owners or finalizers"):
            gate.kubectl(verb, "node", node, "example.org/x=y")
    with pytest.raises(cache.RigError, match="neither create, delete nor report"):
        gate.status("node", node, callers.GOOD_REPORT)
    with pytest.raises(cache.RigError, match="neither create, delete nor report"):
        gate.kubectl("delete", "node", node)
    with pytest.raises(cache.RigError, match="neither create, delete nor report"):
        gate.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{node}-2"}})
    assert callers.uid_of(apiserver, node)


def test_gate_keeps_its_objects_and_not_what_humans_write(
    apiserver: controlplane.ApiServer, gate: callers.Caller, node: str
) -> None:
    """Created, adopted and deleted; never an override, a recheck or a status."""
    adopted = {"spec": {"adopted": {"bootID": "b1", "since": "2026-01-01T00:00:00Z"}}}
    override = {"spec": {"override": {"reason": "x", "until": "2099-01-01T00:00:00Z"}}}
    recheck = {"spec": {"recheck": "x"}}

    def patch(caller: callers.Caller, body: dict[str, Any]) -> None:
        caller.kubectl("patch", "fabricnode", node, "--type=merge", "--patch", json.dumps(body))

    gate.kubectl("delete", "fabricnode", node)
    body = callers.fabric_node(apiserver, node)
    for wrong in (override, recheck):
        with pytest.raises(cache.RigError, match="a human's to write"):
            gate.create(body | wrong)
    gate.create(body)
    patch(gate, adopted)
    for wrong in (override, recheck):
        with pytest.raises(cache.RigError, match="a human's to write"):
            patch(gate, wrong)
    apiserver.kubectl("patch", "fabricnode", node, "--type=merge", "--patch", json.dumps(override))
    patch(gate, {"spec": {"adopted": None}})
    with pytest.raises(cache.RigError, match="a human's to"):
        patch(gate, {"spec": {"override": None}})
    with pytest.raises(cache.RigError, match="a human's to"):
        patch(gate, {"spec": None})
    with pytest.raises(cache.RigError, match="its agent's to write"):
        gate.status("fabricnode", node, {"status": {"outcome": "pass"}})
