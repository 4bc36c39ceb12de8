"""The rule: which node may take fabric work, from what its kubelet, its agent, a human and time say. Pure.

A node is closed unless everything says open. What the API cannot say (since when an agent is gone,
since when a node looks good) is remembered here between decisions, and forgotten when the node
reboots or is created anew.

A node that was never proven in its boot is closed strictly. One that was, or that was at work when
the gate came (adopted), is closed only as far as the breaker lets it (`agent/gate/breaker.py`),
which sees all nodes; this rule sees one.
"""

import dataclasses
import enum

from agent.gate.records import FabricNode, NodeView

UNVERIFIED = "unverified"
"""The taint's value on a node that was not proven in its boot."""
AGENT = "agent"
"""The value on one that was, while its agent is gone or says nothing usable."""
_VERIFIED = "verified in this boot and watched"


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
    HELD = "held"
    """Open, though the rule would close it: too many would be closed at once."""
    ADOPTED = "adopted"
    """Open, though not proven: it was at work when the gate came."""
    OVERRIDDEN = "overridden"
    """Open, because a human said so."""
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
    `again_at` is the time at which the answer changes though nothing else does. `limited` says that
    closing it takes room in the breaker.
    """

    taint: bool
    value: str
    cause: Cause
    why: str
    again_at: float | None = None
    limited: bool = False

    @property
    def wanted(self) -> str | None:
        """The taint's value, None for no taint."""
        return self.value if self.taint else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a decision depends on besides the node.

    `now` is seconds on a clock that only goes forward, `wall` since 1970. `mass_absence` says that
    too many agents are away for it to be their nodes' fault.
    """

    now: float
    wall: float
    agent_ready: bool
    fabric_node: FabricNode | None = None
    mass_absence: bool = False


def decide(
    node: NodeView, around: Circumstances, memory: Memory | None, rules: Rules
) -> tuple[Decision, Memory]:
    """Decides about one node.

    Args:
        node: the node as last seen.
        around: what else matters.
        memory: what the previous decision about it returned, None at first sight.
        rules: the waits.
    """
    memory = _recall(memory, node, around)
    said = _overridden(around) or _adopted(node, around) or _fault(node, memory, around, rules)
    if said:
        return said, dataclasses.replace(memory, good_since=None)
    # An absent agent that still has its grace does not close an open node, and does not open a
    # closed one: after a restart of the gate every absence looks new.
    since = around.now if memory.good_since is None else memory.good_since
    memory = dataclasses.replace(memory, good_since=since if around.agent_ready else None)
    return _settled(node, memory, around, rules), memory


def proven(node: NodeView) -> bool:
    """Whether its agent says that the node was proven in the boot that it is in."""
    return bool(node.boot_id) and node.verified_boot_id == node.boot_id


def adopted(node: NodeView, fabric_node: FabricNode | None) -> bool:
    """Whether the node, in the boot that it is in, was at work when the gate came."""
    return (
        fabric_node is not None
        and bool(node.boot_id)
        and (fabric_node.owner, fabric_node.adopted_boot_id) == (node.uid, node.boot_id)
    )


def after_blindness(memory: Memory, seconds: float) -> Memory:
    """The memory after so long without sight: absence did not go on in it, and good looks ended."""
    since = memory.agentless_since
    return dataclasses.replace(
        memory, good_since=None, agentless_since=None if since is None else since + seconds
    )


def _recall(memory: Memory | None, node: NodeView, around: Circumstances) -> Memory:
    identity = (node.uid, node.boot_id)
    if memory is None or memory.identity != identity:
        memory = Memory(identity=identity)
    if around.agent_ready:
        return dataclasses.replace(memory, agentless_since=None)
    # While many are away none is counted; those that are away after that have a grace from then.
    counted = memory.agentless_since is not None and not around.mass_absence
    since = memory.agentless_since if counted else around.now
    return dataclasses.replace(memory, agentless_since=since)


def _overridden(around: Circumstances) -> Decision | None:
    asked = around.fabric_node
    if asked is None or asked.override_until is None or around.wall >= asked.override_until:
        return None
    left = asked.override_until - around.wall
    why = f"opened by hand for another {left:.0f} s: {asked.override_reason}"
    return _open(Cause.OVERRIDDEN, why, around.now + left)


def _adopted(node: NodeView, around: Circumstances) -> Decision | None:
    """About a node that was not proven in this boot, but was at work in it when the gate came.

    It is closed by a failure that its agent found, and by nothing else; once closed, it opens by proof.
    """
    if proven(node) or not adopted(node, around.fabric_node):
        return None
    if node.status == "False":
        return _blocked(node)
    if node.taint is None:
        said = f"FabricReady is {node.status}" if node.status else "its agent has not reported yet"
        return _open(Cause.ADOPTED, f"was at work when the gate came; {said}", None)
    why = "closed since it failed, and not proven since"
    return _closed(node.taint, Cause.NOT_READY, why, limited=True)


def _fault(node: NodeView, memory: Memory, around: Circumstances, rules: Rules) -> Decision | None:
    """The first reason to close the node, None when there is none.

    What is said about another boot is never used as a value: a job that tolerates a failing `peer`
    rung must not land on a node that rebooted since and has shown nothing.
    """
    if not proven(node):
        if not node.status:
            why = "its agent has reported nothing yet"
            return _closed(UNVERIFIED, Cause.UNREPORTED, _with_malformed(why, node))
        said = f"{node.status} ({node.reason or 'no reason'})"
        why = f"not verified in this boot; FabricReady is {said}"
        return _closed(UNVERIFIED, Cause.OTHER_BOOT, _with_malformed(why, node))
    since, grace = memory.agentless_since, rules.absence_grace_seconds
    if since is not None and not around.mass_absence and around.now - since >= grace:
        why = f"its agent has not been ready for {grace:g} s"
        return _closed(AGENT, Cause.AGENT_GONE, why, limited=True)
    if node.status != "True":
        # The rung alone goes stale when the agent dies, so a deadline stands here as well.
        return dataclasses.replace(_blocked(node), again_at=_grace_ends(memory, around, rules))
    return None


def _blocked(node: NodeView) -> Decision:
    """Closed by what its agent says of this boot, or by an agent that says nothing usable."""
    said = f"{node.status} ({node.reason or 'no reason'})" if node.status else "missing"
    why = _with_malformed(f"FabricReady is {said}", node)
    return _closed(node.blocked_rung or AGENT, Cause.NOT_READY, why, limited=True)


def _settled(node: NodeView, memory: Memory, around: Circumstances, rules: Rules) -> Decision:
    """About a node that nothing is wrong with: open, or closed until that has lasted."""
    grace_ends = _grace_ends(memory, around, rules)
    if node.taint is None:
        if around.mass_absence and not around.agent_ready:
            return _open(Cause.HELD, "its agent is away, as too many are to blame nodes", None)
        return _open(Cause.READY, _VERIFIED, grace_ends)
    if memory.good_since is None:
        why = "waiting for its agent to be ready"
        return _closed(node.taint, Cause.SETTLING, why, again_at=grace_ends)
    opens_at = memory.good_since + rules.stable_seconds
    if around.now < opens_at:
        why = f"opens when it has looked good for {rules.stable_seconds:g} s"
        return _closed(node.taint, Cause.SETTLING, why, again_at=opens_at)
    return _open(Cause.READY, _VERIFIED, grace_ends)


def _grace_ends(memory: Memory, around: Circumstances, rules: Rules) -> float | None:
    if memory.agentless_since is None or around.mass_absence:
        return None
    return memory.agentless_since + rules.absence_grace_seconds


def _with_malformed(why: str, node: NodeView) -> str:
    return f"{why}; malformed: {node.malformed}" if node.malformed else why


def _closed(
    value: str, cause: Cause, why: str, *, again_at: float | None = None, limited: bool = False
) -> Decision:
    return Decision(
        taint=True, value=value, cause=cause, why=why, again_at=again_at, limited=limited
    )


def _open(cause: Cause, why: str, again_at: float | None) -> Decision:
    return Decision(taint=False, value="", cause=cause, why=why, again_at=again_at)
