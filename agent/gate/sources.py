"""What the settings mean for the gate: which objects it looks at, and by which rules it decides."""

import functools

from agent.gate import breaker, decision, fabricnodes, records, taints, watch
from agent.gate.keeper import Orders
from agent.gate.records import AgentPod, FabricNode, NodeView
from agent.settings import GateSettings


def nodes(gate: GateSettings) -> watch.Collection[NodeView]:
    """The nodes of the pool."""
    selector = ",".join(filter(None, (gate.pool_label, gate.node_selector)))
    return watch.Collection(
        what="nodes",
        path=taints.NODES,
        query={"labelSelector": selector},
        read=functools.partial(
            records.node_view, taint_key=gate.taint_key, pool_label=gate.pool_label
        ),
    )


def pods(gate: GateSettings) -> watch.Collection[AgentPod]:
    """The agents' pods."""
    return watch.Collection(
        what="pods",
        path=f"/api/v1/namespaces/{gate.namespace}/pods",
        query={"labelSelector": gate.agent_selector},
        read=records.agent_pod,
    )


def fabric_nodes(gate: GateSettings) -> watch.Collection[FabricNode]:
    """The gate's own objects."""
    return watch.Collection(
        what="fabricnodes",
        path=fabricnodes.PATH,
        query={"labelSelector": f"{fabricnodes.GATE}={gate.namespace}"},
        read=records.fabric_node,
    )


def orders(gate: GateSettings) -> Orders:
    """What of the settings may change while the gate runs."""
    return Orders(
        rules=decision.Rules(
            absence_grace_seconds=gate.absence_grace_seconds, stable_seconds=gate.stable_seconds
        ),
        limits=breaker.Limits(
            recent_percent=gate.breaker.recent_percent,
            recent_seconds=gate.breaker.recent_seconds,
            total_percent=gate.breaker.total_percent,
            absent_percent=gate.breaker.absent_percent,
        ),
        enforcing=gate.mode == "enforce",
        writing=gate.mode != "nrc",
    )
