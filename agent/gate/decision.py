"""The rule: which node may take fabric work, from what its kubelet, its agent and time say. Pure.

A node is closed unless everything says open. What the API cannot say (since when an agent is gone,
since when a node looks good) is remembered here between decisions, and forgotten when the node
reboots or is created anew.

A breaker, which limits how many verified nodes may close at once, takes its place between this rule
and the writer: it sees decisions of many nodes, this rule sees one.
"""

import dataclasses
import enum

from agent.gate.records import NodeView

UNVERIFIED = "unverified"
AGENT = "agent"


class Cause(enum.StrEnum):
    """Why a node is closed or open, in words that a metric can count."""

    UNREPORTED = "unreported"
    """No agent has said anything usable about the node."""
    OTHER_BOOT = "other_boot"
    """What was proven was proven in another boot, or never."""
    AGENT_GONE = "agent_gone"
    """Nobody watches the node for longer than the grace."""
    NOT_READY = "not_ready"
    """The condition is not True."""
    SETTLING = "settling"
    """Nothing is wrong, and it must stay so for a while before the taint goes."""
    READY = "ready"
    """Proven in this boot, watched, and stable."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How long an agent may be away from a verified node, and how long good looks must last."""

    absence_grace_seconds: float
    stable_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Since when (a monotonic clock) something has been so without a break; None: it is not."""

    identity: tuple[str, str]
    """The node's uid and boot id. What was remembered of another identity is void."""
    good_since: float | None = None
    agentless_since: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the node's taint should be.

    `value` is the taint's value where `taint` holds, else empty. `why` is one line for a person.
    `again_at` is the time at which the answer changes though nothing else does.
    """

    taint: bool
    value: str
    cause: Cause
    why: str
    again_at: float | None = None


def decide(
    node: NodeView, *, agent_ready: bool, memory: Memory | None, now: float, rules: Rules
) -> tuple[Decision, Memory]:
    """Decides about one node.

    Args:
        node: the node as last seen.
        agent_ready: whether an agent's pod on it is ready.
        memory: what the previous decision about it returned, None at first sight.
        now: seconds on a clock that only goes forward.
        rules: the waits.
    """
    memory = _recall(memory, node, agent_ready=agent_ready, now=now)
    fault = _fault(node, memory, now, rules)
    if fault:
        return fault, dataclasses.replace(memory, good_since=None)
    # An absent agent that still has its grace does not close an open node, and does not open a
    # closed one: after a restart of the gate every absence looks new.
    good_since = (
        None if not agent_ready else now if memory.good_since is None else memory.good_since
    )
    memory = dataclasses.replace(memory, good_since=good_since)
    return _settled(node, memory, now, rules), memory


def _recall(memory: Memory | None, node: NodeView, *, agent_ready: bool, now: float) -> Memory:
    identity = (node.uid, node.boot_id)
    if memory is None or memory.identity != identity:
        memory = Memory(identity=identity)
    if agent_ready:
        return dataclasses.replace(memory, agentless_since=None)
    since = now if memory.agentless_since is None else memory.agentless_since
    return dataclasses.replace(memory, agentless_since=since)


def _fault(node: NodeView, memory: Memory, now: float, rules: Rules) -> Decision | None:
    """The first reason to close the node, None when there is none.

    What is said about another boot is never used as a value: a job that tolerates a failing `peer`
    rung must not land on a node that rebooted since and has shown nothing.
    """
    if not node.status:
        return _closed(UNVERIFIED, Cause.UNREPORTED, "its agent has reported nothing yet")
    if not node.boot_id or node.verified_boot_id != node.boot_id:
        said = f"{node.status} ({node.reason or 'no reason'})"
        return _closed(
            UNVERIFIED, Cause.OTHER_BOOT, f"not verified in this boot; FabricReady is {said}"
        )
    gone_since = memory.agentless_since
    if gone_since is not None and now - gone_since >= rules.absence_grace_seconds:
        grace = rules.absence_grace_seconds
        return _closed(AGENT, Cause.AGENT_GONE, f"its agent has not been ready for {grace:g} s")
    if node.status != "True":
        why = f"FabricReady is {node.status} ({node.reason or 'no reason'})"
        # The rung alone goes stale when the agent dies, so a deadline stands here as well.
        fault = _closed(node.blocked_rung or UNVERIFIED, Cause.NOT_READY, why)
        return dataclasses.replace(fault, again_at=_grace_ends(memory, rules))
    return None


def _settled(node: NodeView, memory: Memory, now: float, rules: Rules) -> Decision:
    """About a node that nothing is wrong with: open, or closed until that has lasted."""
    grace_ends = _grace_ends(memory, rules)
    if node.taint is None:
        return _open(again_at=grace_ends)
    if memory.good_since is None:
        why = "waiting for its agent to be ready"
        return _closed(node.taint, Cause.SETTLING, why, again_at=grace_ends)
    opens_at = memory.good_since + rules.stable_seconds
    if now < opens_at:
        why = f"opens when it has looked good for {rules.stable_seconds:g} s"
        return _closed(node.taint, Cause.SETTLING, why, again_at=opens_at)
    return _open(again_at=grace_ends)


def _grace_ends(memory: Memory, rules: Rules) -> float | None:
    if memory.agentless_since is None:
        return None
    return memory.agentless_since + rules.absence_grace_seconds


def _closed(value: str, cause: Cause, why: str, again_at: float | None = None) -> Decision:
    return Decision(taint=True, value=value, cause=cause, why=why, again_at=again_at)


def _open(again_at: float | None) -> Decision:
    why = "verified in this boot and watched"
    return Decision(taint=False, value="", cause=Cause.READY, why=why, again_at=again_at)
