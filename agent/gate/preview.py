"""`fabric-ready gate --dry-run`: what mode `enforce` would do to each node now. Reads, and writes nothing."""

import sys
import time
from typing import Any

import msgspec
import rich.console
import rich.table
import rich.text

from agent.cluster import connection, errors, leader
from agent.gate import breaker, decision, fabricnodes, sources, watch
from agent.gate.breaker import Pool
from agent.gate.decision import Cause, Circumstances, Decision
from agent.gate.records import AgentPod, FabricNode, NodeView
from agent.settings import GateSettings, Settings

_EXIT_CLOSES = 1
_EXIT_UNKNOWN = 2


def run(settings: Settings, *, as_json: bool) -> int:
    """Prints it.

    Returns:
        the exit code: 0 when no open node would be closed, 1 when one would, 2 when the API server
        can't be asked.
    """
    gate = settings.gate
    try:
        api = connection.Connection.find()
        nodes, _ = watch.listed(api, sources.nodes(gate))
        pods, _ = watch.listed(api, sources.pods(gate))
        objects, _ = watch.listed(api, sources.fabric_nodes(gate))
        installed_at = leader.made_at(api, gate.namespace)
    except errors.ApiError as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return _EXIT_UNKNOWN
    found = decide_all(gate, nodes, pods, objects, installed_at or time.time())
    closing = [node for node, said in found if said.taint and node.taint is None]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(_rows(found)), indent=2).decode())
    else:
        _print(gate, found, len(closing))
    return _EXIT_CLOSES if closing else 0


def decide_all(
    gate: GateSettings,
    nodes: dict[str, NodeView],
    pods: dict[str, AgentPod],
    objects: dict[str, FabricNode],
    installed_at: float,
) -> list[tuple[NodeView, Decision]]:
    """Each node, by name, and what the gate would decide about it at its first look in mode `enforce`."""
    orders = sources.orders(gate)
    policy = fabricnodes.Policy(enforcing=True, installed_at=installed_at)
    ready = {pod.node for pod in pods.values() if pod.ready}
    targets = {
        name: fabricnodes.wanted(node, objects.get(name), policy) for name, node in nodes.items()
    }
    pools: dict[str, Pool] = {}
    for name, node in nodes.items():
        pool = pools.setdefault(node.pool, Pool(orders.limits))
        was_proven = decision.proven(node) or decision.adopted(node, targets[name])
        pool.put(name, breaker.member(node, proven=was_proven, agent_ready=name in ready))
    found = []
    for name, node in sorted(nodes.items()):
        pool, wall = pools[node.pool], time.time()
        around = Circumstances(
            now=time.monotonic(),
            wall=wall,
            agent_ready=name in ready,
            fabric_node=targets[name],
            mass_absence=pool.mass_absence,
        )
        said, _ = decision.decide(node, around, None, orders.rules)
        if said.limited and node.taint is None:
            if pool.room_at(wall) > wall:
                why = f"the breaker would hold it open: {said.why}"
                said = Decision(taint=False, value="", cause=Cause.HELD, why=why)
            else:
                pool.put(name, breaker.Member(closed_at=wall, absent=name not in ready))
        found.append((node, said))
    return found


def _rows(found: list[tuple[NodeView, Decision]]) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "pool": node.pool,
            "taint": node.taint,
            "would_be": said.wanted,
            "cause": said.cause.value,
            "why": said.why,
        }
        for node, said in found
    ]


def _print(gate: GateSettings, found: list[tuple[NodeView, Decision]], closing: int) -> None:
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    if not found:
        console.print(f"No node has the label {gate.pool_label}: there is nothing to gate.")
        return
    table = rich.table.Table()
    for column in ("node", "pool", "taint now", "would be", "cause", "why"):
        table.add_column(column, overflow="fold")
    for row in _rows(found):
        cells = [str(value if value is not None else "-") for value in row.values()]
        table.add_row(*map(rich.text.Text, cells))
    console.print(table)
    adopted = sum(said.cause is Cause.ADOPTED for _, said in found)
    console.print(
        f"{len(found)} nodes: mode enforce would close {closing} that are open now, and adopt {adopted}."
    )
    if any(node.control_plane for node, _ in found):
        console.print("There are control-plane nodes among them.")
