"""The keeper acts only on what it sees, retries what was not taken, and keeps nobody waiting."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

from agent.gate import keeper, metrics, records, taints, view
from agent.gate.decision import Rules
from tests.agent.gate import objects
from tests.agent.gate.objects import KEY
from tests.cluster import cache, waiting

RULES = Rules(absence_grace_seconds=1.5, stable_seconds=0.5)


class Kept:
    """A running keeper whose picture the test paints."""

    def __init__(self, pool: objects.Pool) -> None:
        self.pool = pool
        self.view = view.View()
        self.counters = metrics.Metrics()
        writer = taints.Writer(pool.connection, key=KEY, pool_label=pool.label)
        self.keeper = keeper.Keeper(
            self.view, writer, pool.connection, RULES, self.counters, enforce=True
        )

    def sight(self, *, current: bool) -> None:
        """Both watches see, or do not."""
        self.view.nodes.sight(current=current)
        self.view.pods.sight(current=current)

    def show(self, node: str, *, agent_ready: bool) -> None:
        """The node as it is now, and its agent."""
        seen = records.node_view(self.pool.get(node), KEY)
        assert seen is not None
        self.view.nodes.put(seen)
        self.view.pods.put(records.AgentPod(name=f"p-{node}", node=node, ready=agent_ready))

    def writes(self, action: str, outcome: str) -> float:
        """How many writes had that outcome."""
        labels = {"action": action, "outcome": outcome}
        sample = "fabric_gate_taint_writes_total"
        return self.counters.registry.get_sample_value(sample, labels) or 0.0


@contextlib.contextmanager
def keep(pool: objects.Pool) -> Iterator[Kept]:
    """A running keeper, ended afterwards."""
    kept = Kept(pool)
    thread = threading.Thread(target=kept.keeper.run, name="keeper")
    thread.start()
    try:
        yield kept
    finally:
        kept.keeper.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_blind_keeper_writes_nothing(pool: objects.Pool) -> None:
    """One blind watch is enough to hold everything; sight of both sets it going."""
    node = pool.add()
    with keep(pool) as kept:
        kept.view.nodes.sight(current=True)
        kept.show(node, agent_ready=True)
        time.sleep(0.5)
        assert pool.taint(node) is None
        kept.view.pods.sight(current=True)
        waiting.until("the taint", lambda: pool.taint(node), seconds=5)


def test_grace_that_ran_out_while_blind_starts_anew(pool: objects.Pool) -> None:
    """An agent is not held to be away for the time in which the gate could not have heard it."""
    node = pool.add()
    pool.report(node, "True", "FabricVerified")
    with keep(pool) as kept:
        kept.show(node, agent_ready=False)
        kept.sight(current=True)
        time.sleep(0.3)
        kept.sight(current=False)
        time.sleep(RULES.absence_grace_seconds)
        kept.sight(current=True)
        time.sleep(0.3)
        kept.show(node, agent_ready=True)  # word that was late
        time.sleep(RULES.absence_grace_seconds)
        assert pool.taint(node) is None
        assert 0 == kept.writes("taint", "done")


def test_time_alone_closes_and_opens(pool: objects.Pool) -> None:
    """The ends of grace and stable time are kept without any event."""
    node = pool.add()
    pool.report(node, "True", "FabricVerified")
    with keep(pool) as kept:
        kept.show(node, agent_ready=False)
        kept.sight(current=True)
        waiting.until("the taint", lambda: pool.taint(node) == "agent", seconds=5)
        kept.show(node, agent_ready=True)
        waiting.until("no taint", lambda: pool.taint(node) is None, seconds=5)


def test_refused_write_is_tried_again_and_delays_no_other_node(pool: objects.Pool) -> None:
    """A node that admission protects is retried, while its neighbours are written at once."""
    protected, free = pool.add("a-protected"), pool.add("b-free")
    pool.api.apply(json.dumps(_policy(pool, protected)))
    pool.api.apply(json.dumps(_binding(pool)))
    waiting.until("the policy to act", lambda: _is_refused(pool, protected), seconds=30)
    with keep(pool) as kept:
        kept.show(protected, agent_ready=True)
        kept.show(free, agent_ready=True)
        kept.sight(current=True)
        waiting.until("the free one's taint", lambda: pool.taint(free), seconds=5)
        waiting.until("two tries", lambda: kept.writes("taint", "failed") >= 2, seconds=10)
        assert pool.taint(protected) is None
        assert 0 == kept.keeper._resume_at
        pool.api.kubectl("delete", "validatingadmissionpolicybinding", f"gate-{pool.id}")
        waiting.until("the other's taint", lambda: pool.taint(protected), seconds=60)


def _is_refused(pool: objects.Pool, node: str) -> bool:
    try:
        pool.api.kubectl("taint", "node", node, "test/probe=x:NoSchedule")
    except cache.RigError as error:
        return "protected" in str(error)
    pool.api.kubectl("taint", "node", node, "test/probe-")
    return False


def _policy(pool: objects.Pool, node: str) -> dict[str, object]:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["nodes"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"gate-{pool.id}"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [
                {
                    "expression": f"object.metadata.name != '{node}' || "
                    "!has(object.spec.taints) || size(object.spec.taints) == 0",
                    "message": "protected",
                }
            ],
        },
    }


def _binding(pool: objects.Pool) -> dict[str, object]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"gate-{pool.id}"},
        "spec": {"policyName": f"gate-{pool.id}", "validationActions": ["Deny"]},
    }
