"""The keeper acts only on what it sees, retries what was not taken, and keeps nobody waiting."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

from agent.cluster import leader
from agent.gate import (
    breaker,
    events,
    fabricnodes,
    hands,
    keeper,
    metrics,
    records,
    taints,
    view,
    watch,
)
from agent.gate.decision import Rules
from agent.gate.keeper import Orders
from tests.agent.gate import objects
from tests.agent.gate.objects import KEY
from tests.cluster import cache, waiting

RULES = Rules(absence_grace_seconds=1.5, stable_seconds=0.5)
ORDERS = Orders(
    rules=RULES,
    limits=breaker.Limits(
        recent_percent=10, recent_seconds=3, total_percent=30, absent_percent=100
    ),
    enforcing=True,
    writing=True,
)


class Kept:
    """A running keeper whose picture of nodes and agents the test paints."""

    def __init__(self, pool: objects.Pool) -> None:
        self.pool = pool
        self.view = view.View()
        self.counters = metrics.Metrics()
        self.leader = leader.Leader(pool.connection, pool.namespace, self.view.wake)
        crew = hands.Hands(
            taints.Writer(pool.connection, self._read, key=KEY, selector=pool.label),
            fabricnodes.Writer(pool.connection, pool.namespace),
            events.Events(pool.connection, pool.namespace, self.counters),
            self.counters,
            self.view.wake,
        )
        self.keeper = keeper.Keeper(self.view, self.leader, crew, ORDERS, self.counters)
        # What the keeper writes itself it has to see.
        objects_ = watch.Collection(
            what="fabricnodes",
            path=fabricnodes.PATH,
            query={"labelSelector": f"{fabricnodes.GATE}={pool.namespace}"},
            read=records.fabric_node,
        )
        self.watch = watch.Watch(
            pool.connection, objects_, self.view.fabric_nodes, self.counters, session_seconds=1
        )

    def _read(self, raw: object) -> records.NodeView | None:
        return records.node_view(raw, KEY, self.pool.label)

    def sight(self, *, current: bool) -> None:
        """All watches see, or do not."""
        self.view.nodes.sight(current=current)
        self.view.pods.sight(current=current)

    def show(self, node: str, *, agent_ready: bool) -> None:
        """The node as it is now, and its agent."""
        self.view.nodes.put(self.pool.view(node))
        self.view.pods.put(records.AgentPod(name=f"p-{node}", node=node, ready=agent_ready))

    def count(self, cause: str) -> float:
        """How many nodes the rule says that of."""
        found = self.counters.registry.get_sample_value("fabric_gate_nodes", {"cause": cause})
        return found or 0.0

    def lease_events(self) -> list[tuple[str, str]]:
        """Reason and message of what was said about the breaker, oldest first."""
        path = f"/api/v1/namespaces/{self.pool.namespace}/events"
        query = {"fieldSelector": "involvedObject.kind=Lease"}
        items = self.pool.connection.get(path, query)["items"]
        items.sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [(item["reason"], item["message"]) for item in items]

    def writes(self, action: str, outcome: str) -> float:
        """How many writes had that outcome."""
        labels = {"action": action, "outcome": outcome}
        sample = "fabric_gate_taint_writes_total"
        return self.counters.registry.get_sample_value(sample, labels) or 0.0


@contextlib.contextmanager
def keep(pool: objects.Pool, *, leads: bool = True) -> Iterator[Kept]:
    """A running keeper, ended afterwards."""
    kept = Kept(pool)
    threads = [
        threading.Thread(target=run) for run in (kept.keeper.run, kept.leader.run, kept.watch.run)
    ]
    for thread in threads:
        thread.start()
    try:
        waiting.until("leadership", lambda: kept.leader.leading == leads, seconds=20)
        waiting.until("FabricNodes", lambda: kept.view.fabric_nodes.current, seconds=20)
        yield kept
    finally:
        kept.keeper.stop()
        kept.leader.resign()
        kept.watch.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_blind_keeper_writes_nothing(pool: objects.Pool) -> None:
    """One blind watch is enough to hold everything; sight of all sets it going."""
    with keep(pool) as kept:
        node = pool.add()
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


def test_blinks_do_not_keep_a_dead_agents_node_open(pool: objects.Pool) -> None:
    """A watch that breaks more often than the grace: what was seen of the absence adds up."""
    node = pool.add()
    pool.report(node, "True", "FabricVerified")
    with keep(pool) as kept:
        kept.show(node, agent_ready=False)
        for _ in range(8):
            kept.sight(current=True)
            time.sleep(0.4)
            kept.sight(current=False)
            time.sleep(0.1)
        kept.sight(current=True)
        waiting.until("the taint", lambda: pool.taint(node) == "agent", seconds=3)


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
    with keep(pool) as kept:
        protected, free = pool.add("a-protected"), pool.add("b-free")
        pool.api.apply(json.dumps(_policy(pool, protected)))
        pool.api.apply(json.dumps(_binding(pool)))
        waiting.until("the policy to act", lambda: _is_refused(pool, protected), seconds=30)
        kept.show(protected, agent_ready=True)
        kept.show(free, agent_ready=True)
        kept.sight(current=True)
        waiting.until("the free one's taint", lambda: pool.taint(free), seconds=5)
        waiting.until("two tries", lambda: kept.writes("taint", "failed") >= 2, seconds=10)
        assert pool.taint(protected) is None
        assert 0 == kept.keeper._resume_at
        pool.api.kubectl("delete", "validatingadmissionpolicybinding", f"gate-{pool.id}")
        waiting.until("the other's taint", lambda: pool.taint(protected), seconds=60)


def test_breaker_holds_what_is_too_much_and_lets_it_go_with_time(pool: objects.Pool) -> None:
    """Of three proven nodes that fail at once one is closed; the others are held, said so, and stay open."""
    nodes = [pool.add(name) for name in ("a", "b", "c")]
    for node in nodes:
        pool.report(node, "True", "FabricVerified")
    with keep(pool) as kept:
        for node in nodes:
            kept.show(node, agent_ready=True)
        kept.sight(current=True)
        waiting.until("sight", lambda: kept.count("ready") == 3, seconds=5)
        for node in nodes:
            pool.report(node, "False", "LoopbackSlow", rung="loopback")
            kept.show(node, agent_ready=True)
        waiting.until("two held", lambda: kept.count("held") == 2, seconds=5)
        waiting.until("the taint", lambda: _tainted(pool, nodes) == 1, seconds=5)
        waiting.until("the event", kept.lease_events, seconds=10)
        # The taint is there to stay: also after the ten minutes (here 3 s) a third may be closed in all.
        assert 1 == _tainted(pool, nodes)
        ((reason, message),) = kept.lease_events()
        assert "FabricBreakerOpen" == reason
        assert "1 of 3 proven nodes are closed; held back: " in message
        assert "(loopback), " in message
        for node in nodes:
            pool.report(node, "True", "FabricVerified")
            kept.show(node, agent_ready=True)
        waiting.until("the closed one", lambda: _tainted(pool, nodes) == 0, seconds=10)
        waiting.until("the last word", lambda: len(kept.lease_events()) == 2, seconds=10)
        assert "FabricBreakerClosed" == kept.lease_events()[-1][0]


def _tainted(pool: objects.Pool, nodes: list[str]) -> int:
    return sum(pool.taint(node) is not None for node in nodes)


def test_new_leader_counts_what_the_old_one_closed(pool: objects.Pool) -> None:
    """The breaker's state is in the taints: another gate closes no second node."""
    first, second = pool.add("a"), pool.add("b")
    for node in (first, second):
        pool.report(node, "False", "LoopbackSlow", rung="loopback")
    with keep(pool) as kept:
        kept.show(first, agent_ready=True)
        kept.show(second, agent_ready=True)
        kept.sight(current=True)
        waiting.until("one", lambda: _tainted(pool, [first, second]) == 1, seconds=5)
    with keep(pool) as kept:
        kept.show(first, agent_ready=True)
        kept.show(second, agent_ready=True)
        kept.sight(current=True)
        waiting.until("the hold", lambda: kept.count("held") == 1, seconds=5)
        assert 1 == _tainted(pool, [first, second])


def test_never_proven_nodes_are_closed_without_limit(pool: objects.Pool) -> None:
    """The breaker protects what works, not what was never shown to."""
    with keep(pool) as kept:
        kept.sight(current=True)
        nodes = [pool.add(name) for name in ("a", "b", "c")]
        for node in nodes:
            kept.show(node, agent_ready=True)
        waiting.until("all taints", lambda: _tainted(pool, nodes) == 3, seconds=5)


def test_follower_does_nothing_until_it_leads(pool: objects.Pool) -> None:
    """Of two gates one acts; when it resigns the other does, without waiting for the Lease to run out."""
    with keep(pool) as first, keep(pool, leads=False) as second:
        node = pool.add()
        second.show(node, agent_ready=True)
        second.sight(current=True)
        time.sleep(0.5)
        assert pool.taint(node) is None
        assert not second.leader.leading
        first.leader.resign()
        waiting.until("the taint", lambda: pool.taint(node), seconds=leader.LEASE_SECONDS / 2)
        assert not first.leader.leading


def test_malformed_state_is_said_once(pool: objects.Pool) -> None:
    """What can't be read keeps the node closed, and one event says what it is."""
    with keep(pool) as kept:
        node = pool.add()
        pool.report(node, "True", "FabricVerified", boot="\x07" * 20)
        kept.show(node, agent_ready=True)
        kept.sight(current=True)
        waiting.until("the taint", lambda: pool.taint(node) == "unverified", seconds=5)
        waiting.until("the event", lambda: _said(pool, node, "FabricStateMalformed"), seconds=5)
        kept.show(node, agent_ready=True)
        kept.show(node, agent_ready=False)
        waiting.until("an idle keeper", lambda: kept.count("other_boot") == 1, seconds=5)
        (said,) = _said(pool, node, "FabricStateMalformed")
        assert f"Can't be read: {records.VERIFIED_BOOT_ID}" in said


def _said(pool: objects.Pool, node: str, reason: str) -> list[str]:
    return [message for found, message in pool.events(node) if found == reason]


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
