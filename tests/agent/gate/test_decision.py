"""The rule closes every node that is not proven, and opens one only after it looked good."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.gate import decision, records
from agent.gate.decision import Cause, Circumstances, Decision, Memory, Rules
from agent.gate.records import FabricNode, NodeView

RULES = Rules(absence_grace_seconds=600, stable_seconds=30)
READY = NodeView(
    name="node-a", uid="u1", boot_id="boot-2", status="True", verified_boot_id="boot-2"
)
REPORTED_FALSE = dataclasses.replace(
    READY, status="False", reason="PortDown", blocked_rung="driver"
)


WALL = 1_800_000_000.0


def _decide(
    node: NodeView,
    *,
    agent_ready: bool = True,
    memory: Memory | None = None,
    now: float = 1000.0,
    fabric_node: FabricNode | None = None,
    mass_absence: bool = False,
) -> tuple[Decision, Memory]:
    around = Circumstances(
        now=now,
        wall=WALL + now,
        agent_ready=agent_ready,
        fabric_node=fabric_node,
        mass_absence=mass_absence,
    )
    return decision.decide(node, around, memory, RULES)


@pytest.mark.parametrize(
    ("changes", "value", "cause"),
    [
        ({"status": "", "verified_boot_id": ""}, "unverified", Cause.UNREPORTED),
        ({"status": ""}, "agent", Cause.NOT_READY),
        ({"status": "False"}, "agent", Cause.NOT_READY),
        ({"status": "Unknown"}, "agent", Cause.NOT_READY),
        ({"status": "False", "blocked_rung": "driver"}, "driver", Cause.NOT_READY),
        ({"verified_boot_id": "boot-1"}, "unverified", Cause.OTHER_BOOT),
        ({"verified_boot_id": ""}, "unverified", Cause.OTHER_BOOT),
        ({"boot_id": "", "verified_boot_id": ""}, "unverified", Cause.OTHER_BOOT),
        (
            {"status": "False", "verified_boot_id": "boot-1", "blocked_rung": "peer"},
            "unverified",
            Cause.OTHER_BOOT,
        ),
    ],
)
def test_anything_short_of_proven_closes_at_once(
    changes: dict[str, Any], value: str, cause: Cause
) -> None:
    """Each missing piece closes the node at first sight; only this boot's rung is the value."""
    said, _ = _decide(dataclasses.replace(READY, **changes))
    assert (True, value, cause) == (said.taint, said.value, said.cause)


def test_proven_node_without_taint_is_left_open() -> None:
    """A node that is proven and has no taint gets none, also at the first sight of a new gate."""
    said, _ = _decide(READY)
    assert (False, "", Cause.READY, None) == (said.taint, said.value, said.cause, said.again_at)


def test_taint_goes_after_the_node_has_looked_good_long_enough() -> None:
    """The taint is held, with its value, until the stable time has passed without a fault."""
    tainted = dataclasses.replace(READY, taint="driver")
    first, memory = _decide(tainted, now=1000)
    assert (True, "driver", 1030) == (first.taint, first.value, first.again_at)
    early, memory = _decide(tainted, memory=memory, now=1029.9)
    assert early.taint
    late, _ = _decide(tainted, memory=memory, now=1030)
    assert (False, Cause.READY) == (late.taint, late.cause)


def test_fault_in_between_starts_the_wait_again() -> None:
    """A flap during the wait costs the whole wait."""
    tainted = dataclasses.replace(READY, taint="driver")
    _, memory = _decide(tainted, now=1000)
    _, memory = _decide(
        dataclasses.replace(REPORTED_FALSE, taint="driver"), memory=memory, now=1020
    )
    again, _ = _decide(tainted, memory=memory, now=1031)
    assert (True, 1061) == (again.taint, again.again_at)


def test_absent_agent_closes_a_verified_node_after_the_grace() -> None:
    """A verified node stays open for the grace, and says when it will close."""
    first, memory = _decide(READY, agent_ready=False, now=1000)
    assert (False, 1600) == (first.taint, first.again_at)
    before, memory = _decide(READY, agent_ready=False, memory=memory, now=1599)
    assert not before.taint
    after, _ = _decide(READY, agent_ready=False, memory=memory, now=1600)
    assert (True, "agent", Cause.AGENT_GONE) == (after.taint, after.value, after.cause)


def test_agent_that_comes_back_within_the_grace_changes_nothing() -> None:
    """A rolling update of the agent taints nobody, and the next absence gets a grace of its own."""
    _, memory = _decide(READY, agent_ready=False, now=1000)
    back, memory = _decide(READY, memory=memory, now=1500)
    assert (False, None) == (back.taint, back.again_at)
    gone, _ = _decide(READY, agent_ready=False, memory=memory, now=1700)
    assert (False, 2300) == (gone.taint, gone.again_at)


def test_absent_agent_opens_nothing_during_its_grace() -> None:
    """A new gate, to which every absence is new, does not open a node that the old one closed."""
    tainted = dataclasses.replace(READY, taint="agent")
    _, memory = _decide(tainted, agent_ready=False, now=1000)
    said, _ = _decide(tainted, agent_ready=False, memory=memory, now=1100)
    assert (True, "agent", Cause.SETTLING) == (said.taint, said.value, said.cause)


def test_dead_agent_outranks_the_rung_that_it_named() -> None:
    """What a dead agent said last does not stay the value that single-node jobs tolerate."""
    failing = dataclasses.replace(REPORTED_FALSE, blocked_rung="peer")
    first, memory = _decide(failing, agent_ready=False, now=1000)
    assert ("peer", 1600) == (first.value, first.again_at)
    later, _ = _decide(failing, agent_ready=False, memory=memory, now=1600)
    assert "agent" == later.value


def test_blindness_takes_nothing_off_an_absence_and_ends_good_looks() -> None:
    """Seen absent for 400 s, unseen for 1000, seen absent for 200: that makes the grace."""
    _, memory = _decide(READY, agent_ready=False, now=0)
    _, memory = _decide(READY, agent_ready=False, memory=memory, now=400)
    memory = decision.after_blindness(memory, 1000)
    early, _ = _decide(READY, agent_ready=False, memory=memory, now=1599)
    late, _ = _decide(READY, agent_ready=False, memory=memory, now=1600)
    assert (None, "agent") == (early.wanted, late.wanted)
    tainted = dataclasses.replace(READY, taint="driver")
    _, memory = _decide(tainted, now=0)
    memory = decision.after_blindness(memory, 1)
    again, _ = _decide(tainted, memory=memory, now=31)
    assert "driver" == again.wanted


def test_reboot_voids_what_was_remembered() -> None:
    """Good time before a reboot does not count after it, though no decision fell in between."""
    tainted = dataclasses.replace(READY, taint="unverified")
    _, memory = _decide(tainted, now=1000)
    rebooted = dataclasses.replace(tainted, boot_id="boot-3", verified_boot_id="boot-3")
    said, _ = _decide(rebooted, memory=memory, now=1031)
    assert (True, 1061) == (said.taint, said.again_at)


# --- Those that were at work before, and what humans say ---

ADOPTED = FabricNode(name="node-a", owner="u1", adopted_boot_id="boot-2")
UNPROVEN = dataclasses.replace(READY, status="", verified_boot_id="")


@pytest.mark.parametrize(
    ("node", "fabric_node", "value", "cause"),
    [
        ({"status": ""}, {}, None, Cause.ADOPTED),
        ({"status": "Unknown"}, {}, None, Cause.ADOPTED),
        ({"status": "False", "blocked_rung": "driver"}, {}, "driver", Cause.NOT_READY),
        ({"status": "False"}, {}, "agent", Cause.NOT_READY),
        ({"boot_id": "boot-3"}, {}, "unverified", Cause.UNREPORTED),
        ({"uid": "u2"}, {}, "unverified", Cause.UNREPORTED),
        ({"boot_id": ""}, {"adopted_boot_id": ""}, "unverified", Cause.UNREPORTED),
        ({"status": "Unknown", "taint": "driver"}, {}, "driver", Cause.NOT_READY),
        (
            {"status": "False", "blocked_rung": "loopback", "taint": "driver"},
            {},
            "loopback",
            Cause.NOT_READY,
        ),
    ],
)
def test_adopted_node_is_closed_by_a_failure_or_a_reboot_only(
    node: dict[str, Any], fabric_node: dict[str, Any], value: str | None, cause: Cause
) -> None:
    """No word from its agent leaves it open; once it failed, only proof opens it."""
    said, _ = _decide(
        dataclasses.replace(UNPROVEN, **node),
        agent_ready=False,
        fabric_node=dataclasses.replace(ADOPTED, **fabric_node),
    )
    assert (value, cause) == (said.wanted, said.cause)


def test_adopted_node_that_was_proven_is_one_like_the_others() -> None:
    """Adoption ends with the first proof: then absence and failures count."""
    _, memory = _decide(READY, agent_ready=False, fabric_node=ADOPTED, now=0)
    said, _ = _decide(READY, agent_ready=False, fabric_node=ADOPTED, memory=memory, now=600)
    assert Cause.AGENT_GONE == said.cause


@pytest.mark.parametrize("node", [UNPROVEN, REPORTED_FALSE, READY])
def test_override_opens_until_it_ends(node: NodeView) -> None:
    """A human's word opens any node, says when that ends, and has ended then."""
    until = WALL + 1060
    asked = FabricNode(name="node-a", override_until=until, override_reason="drill")
    tainted = dataclasses.replace(node, taint="driver")
    said, _ = _decide(tainted, agent_ready=False, fabric_node=asked, now=1000)
    assert (None, Cause.OVERRIDDEN, 1060) == (said.wanted, said.cause, said.again_at)
    assert "drill" in said.why
    later, _ = _decide(tainted, agent_ready=False, fabric_node=asked, now=1060)
    assert later.taint


def test_mass_absence_closes_nobody_and_opens_nobody() -> None:
    """While too many agents are away, absence is no reason; what is closed stays so."""
    _, memory = _decide(READY, agent_ready=False, now=0)
    said, memory = _decide(READY, agent_ready=False, memory=memory, now=900, mass_absence=True)
    assert (None, Cause.HELD) == (said.wanted, said.cause)
    after, _ = _decide(READY, agent_ready=False, memory=memory, now=901)
    assert (None, 1500) == (after.wanted, after.again_at)
    closed = dataclasses.replace(READY, taint="agent")
    said, _ = _decide(closed, agent_ready=False, mass_absence=True)
    assert "agent" == said.wanted


@pytest.mark.parametrize(
    ("node", "limited"), [(UNPROVEN, False), (REPORTED_FALSE, True), (READY, False)]
)
def test_only_what_was_proven_takes_room_in_the_breaker(node: NodeView, *, limited: bool) -> None:
    """A node that was never proven in its boot is closed whatever the breaker says."""
    assert limited == _decide(node)[0].limited


# --- For all histories ---

_nodes = st.builds(
    NodeView,
    name=st.just("node-a"),
    uid=st.sampled_from(["u1", "u1", "u1", "u2"]),
    boot_id=st.sampled_from(["b1", "b1", "b1", "b2", ""]),
    status=st.sampled_from(["True", "True", "True", "False", "Unknown", ""]),
    reason=st.sampled_from(["PortDown", ""]),
    verified_boot_id=st.sampled_from(["b1", "b1", "b1", "b2", ""]),
    blocked_rung=st.sampled_from(["driver", ""]),
)
_histories = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 29.0, 30.0, 31.0, 599.0, 600.0]), _nodes, st.booleans()),
    min_size=1,
    max_size=12,
)


def _same_state(node: NodeView, other: NodeView) -> bool:
    return (node.uid, node.boot_id) == (other.uid, other.boot_id)


@given(_histories, st.sampled_from([None, "unverified", "driver"]))
def test_rule_holds_over_every_history(
    history: list[tuple[float, NodeView, bool]], taint: str | None
) -> None:
    """The rule in its own words, read over the whole history, says what the code says."""
    now, memory = 0.0, None
    seen: list[tuple[float, NodeView, bool, bool]] = []
    for wait, reported, agent_ready in history:
        now += wait
        node = dataclasses.replace(reported, taint=taint)
        said, memory = _decide(node, agent_ready=agent_ready, memory=memory, now=now)

        gone = 0.0 if not agent_ready else None
        for when, earlier, _, was_ready in reversed(seen):
            if gone is None or was_ready or not _same_state(earlier, node):
                break
            gone = now - when
        faulty = (
            node.status != "True"
            or not node.boot_id
            or node.verified_boot_id != node.boot_id
            or (gone is not None and gone >= RULES.absence_grace_seconds)
        )
        good = not faulty and agent_ready
        good_for = 0.0
        for when, earlier, was_good, _ in reversed(seen):
            if not good or not was_good or not _same_state(earlier, node):
                break
            good_for = now - when
        settled = taint is None or (good and good_for >= RULES.stable_seconds)

        assert (faulty or not settled) == said.taint
        assert said.again_at is None or said.again_at > now
        seen.append((now, node, good, agent_ready))
        taint = said.value if said.taint else None


@given(
    node=_nodes,
    worse=st.sampled_from(["status", "verified_boot_id", "boot_id", "agent"]),
    agent_ready=st.booleans(),
)
def test_more_bad_news_never_opens(node: NodeView, worse: str, *, agent_ready: bool) -> None:
    """Taking away any piece of the proof from a closed node leaves it closed."""
    said, _ = _decide(node, agent_ready=agent_ready)
    if worse == "agent":
        after, _ = _decide(node, agent_ready=False)
    else:
        changes: dict[str, Any] = {worse: ""}
        after, _ = _decide(dataclasses.replace(node, **changes), agent_ready=agent_ready)
    assert after.taint or not said.taint


# --- For all garbage ---

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _raw_node() -> dict[str, object]:
    return {
        "metadata": {
            "name": "node-a",
            "uid": "u1",
            "annotations": {records.VERIFIED_BOOT_ID: "boot-2"},
        },
        "spec": {},
        "status": {
            "nodeInfo": {"bootID": "boot-2"},
            "conditions": [{"type": "FabricReady", "status": "True"}],
        },
    }


def test_well_formed_proof_opens() -> None:
    """The node that the garbage test damages is open while undamaged."""
    node = records.node_view(_raw_node(), "key", "pool")
    assert node is not None
    assert not _decide(node)[0].taint


_PLACES: list[tuple[str | int, ...]] = [
    ("metadata", "annotations"),
    ("metadata", "annotations", records.VERIFIED_BOOT_ID),
    ("status",),
    ("status", "nodeInfo"),
    ("status", "nodeInfo", "bootID"),
    ("status", "conditions"),
    ("status", "conditions", 0),
    ("status", "conditions", 0, "type"),
    ("status", "conditions", 0, "status"),
]


@given(st.sampled_from(_PLACES), _json)
def test_garbage_anywhere_in_the_proof_closes(
    place: tuple[str | int, ...], garbage: object
) -> None:
    """With anything else in place of a piece of the proof, the node is closed."""
    raw = _raw_node()
    inner: object = raw
    for key in place[:-1]:
        assert isinstance(inner, (dict, list))
        inner = inner[key]  # type: ignore[index]  # places name keys of dicts and indexes of lists
    assert isinstance(inner, (dict, list))
    inner[place[-1]] = garbage  # type: ignore[index]
    node = records.node_view(raw, "key", "pool")
    assert node is not None
    said, _ = _decide(node)
    # What the boot's proof is believed of, and its condition is not, is the breaker's to limit.
    assert said.wanted == ("agent" if node.verified_boot_id and node.boot_id else "unverified")


@given(_json)
def test_garbage_as_rung_never_becomes_the_value(garbage: object) -> None:
    """The taint's value is always one that the API server accepts."""
    raw = _raw_node()
    raw["metadata"] = {
        "name": "node-a",
        "annotations": {records.VERIFIED_BOOT_ID: "boot-2", records.BLOCKED_RUNG: garbage},
    }
    raw["status"] = {
        "nodeInfo": {"bootID": "boot-2"},
        "conditions": [{"type": "FabricReady", "status": "False"}],
    }
    node = records.node_view(raw, "key", "pool")
    assert node is not None
    value = _decide(node)[0].value
    assert value.isascii()
    assert 0 < len(value) <= 63
    assert value[0].isalnum()
    assert value[-1].isalnum()


def test_two_conditions_of_our_type_are_no_condition() -> None:
    """Of two contradicting conditions none is believed."""
    raw = _raw_node()
    said = [{"type": "FabricReady", "status": "True"}, {"type": "FabricReady", "status": "False"}]
    raw["status"] = {"nodeInfo": {"bootID": "boot-2"}, "conditions": said}
    node = records.node_view(raw, "key", "pool")
    assert node is not None
    assert "" == node.status


@given(_json)
def test_any_json_is_read_without_an_error(garbage: object) -> None:
    """Garbage instead of an object is nobody's record."""
    assert records.node_view(garbage, "key", "pool") is None
    assert records.agent_pod(garbage) is None


def test_agent_pod_is_ready_only_while_running_and_ready() -> None:
    """A pod counts where it is, and as ready only when the kubelet says both."""
    ready = {"type": "Ready", "status": "True"}
    raw = {
        "metadata": {"name": "agent-x"},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "conditions": [ready]},
    }
    assert records.AgentPod(name="agent-x", node="node-a", ready=True) == records.agent_pod(raw)
    ended = {**raw, "status": {"phase": "Failed", "conditions": [ready]}}
    assert records.AgentPod(name="agent-x", node="node-a", ready=False) == records.agent_pod(ended)
    assert records.agent_pod({**raw, "spec": {}}) is None
