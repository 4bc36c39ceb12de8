"""What is sent when: the latest state, once, paced, and through every outage."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.node import outbox
from agent.node.condition import Condition
from agent.node.outbox import Event, Outbox, Patch, State


def state(status: str = "True", reason: str = "FabricVerified") -> State:
    """A state with this condition."""
    said = Condition(status=status, reason=reason, message="m", blocked_rung="", verified=True)
    return State(
        condition=said, since="2026-01-01T00:00:00Z", boot_id="b", profile_hash="p", uid="u"
    )


def event(name: str) -> Event:
    """An event."""
    return Event(
        name=name, uid="u", reason="R", message="m", warning=False, at="2026-01-01T00:00:00Z"
    )


def box(delivered: State | None = None) -> Outbox:
    """A new one at time 0, with a heartbeat of about 600 s."""
    return Outbox("node-a", 600, delivered, 0)


def send(one: Outbox, now: float) -> object:
    """Sends what is due and has it accepted."""
    action = one.next(now)
    if action is not None:
        one.done(action, now)
    return action


def test_a_change_is_sent_once() -> None:
    """And nothing follows until the heartbeat."""
    one = box()
    one.want(state())
    assert Patch(state=state(), heartbeat=False) == send(one, 0)
    assert None is send(one, 1)
    one.want(state())
    assert None is send(one, 400)
    assert Patch(state=state(), heartbeat=True) == send(one, 721)


def test_what_the_server_knows_already_is_not_sent() -> None:
    """A restart in the same boot writes nothing when nothing changed."""
    one = box(delivered=state())
    one.want(state())
    assert None is send(one, 0)


def test_a_new_node_object_is_told_what_the_old_one_knew() -> None:
    """Another uid is another reader."""
    one = box(delivered=msgspec.structs.replace(state(), uid="old"))
    one.want(state())
    assert Patch(state=state(), heartbeat=False) == send(one, 0)


def test_heartbeats_are_spread_by_node_and_within_a_fifth() -> None:
    """A fleet that was installed at once does not write at once."""
    seen = set()
    for number in range(50):
        one = Outbox(f"node-{number}", 600, state(), 0)
        one.want(state())
        first = next(t for t in range(2000) if one.next(t))
        assert 480 <= first <= 721
        seen.add(first)
    assert len(seen) > 25


def test_the_latest_state_wins() -> None:
    """What was wanted and never sent is not sent later."""
    one = box()
    one.want(state("False", "PortDown"))
    one.want(state())
    assert Patch(state=state(), heartbeat=False) == send(one, 0)
    assert None is send(one, 1)


def test_a_state_that_changes_during_a_write_is_sent_after_it() -> None:
    """Nothing is lost between asking and answering."""
    one = box()
    one.want(state())
    action = one.next(0)
    assert action is not None
    one.want(state("False", "PortDown"))
    one.done(action, 1)
    assert Patch(state=state("False", "PortDown"), heartbeat=False) == send(one, 1)


def test_flapping_is_paced_to_three_and_then_six_a_minute() -> None:
    """A port that flaps each second writes eight times in the first minute, not sixty."""
    one = box()
    sent = 0
    for second in range(60):
        one.want(state("True" if second % 2 else "False", f"R{second}"))
        sent += send(one, second) is not None
    assert sent == 8


def test_a_heartbeat_leaves_a_place_for_a_change() -> None:
    """With one place left the heartbeat waits."""
    one = box()
    for second in range(2):
        one.want(state(reason=f"R{second}"))
        send(one, second)
    one._delivered_at = -10_000
    assert None is one.next(2)
    one.want(state("False", "PortDown"))
    assert Patch(state=state("False", "PortDown"), heartbeat=False) == one.next(2)


def test_failures_wait_longer_each_time_and_not_over_a_minute() -> None:
    """Doubling with jitter, from a second to a minute; success starts over."""
    one = box()
    one.want(state())
    now, pauses = 0.0, []
    for _ in range(9):
        action = one.next(now)
        assert action is not None
        one.failed(action, now)
        resumed = next(now + step / 10 for step in range(1, 1000) if one.next(now + step / 10))
        pauses.append(resumed - now)
        now = resumed + 100  # the pace must not hide the backoff
    assert pauses[0] <= 1.1
    assert 29 <= pauses[-1] <= 60.1
    send(one, now)
    one.want(state(reason="Other"))
    assert one.next(now) is not None


def test_retry_after_is_honoured() -> None:
    """A server that says 30 seconds is not asked before."""
    one = box()
    one.want(state())
    action = one.next(0)
    assert action is not None
    one.failed(action, 0, retry_after_seconds=30)
    assert None is one.next(29.9)
    assert one.next(30) is not None


def test_a_nonsense_retry_after_does_not_silence_the_node() -> None:
    """Five minutes are the most that a server gets."""
    one = box()
    one.want(state())
    action = one.next(0)
    assert action is not None
    one.failed(action, 0, retry_after_seconds=float("inf"))
    assert None is one.next(299)
    assert one.next(301) is not None


def test_events_keep_their_order_and_are_retried() -> None:
    """One that fails is sent again before the next; one that will never be taken lets the others pass."""
    one = box()
    for name in "abc":
        one.tell(event(name))
    first = one.next(0)
    assert event("a") == first
    assert isinstance(first, Event)
    one.failed(first, 0)
    assert None is one.next(0.4)
    again = one.next(10)
    assert isinstance(again, Event)
    one.refused(again)
    assert event("b") == send(one, 10)
    assert event("c") == send(one, 10)
    assert None is send(one, 10)


def test_events_that_wait_are_bounded() -> None:
    """A server that is away for a day costs 64 events of memory and loses the oldest, counted."""
    one = box()
    for number in range(100):
        one.tell(event(str(number)))
    assert event("36") == one.next(0)
    assert 36 == one.events_dropped


def test_a_change_goes_before_events() -> None:
    """The condition is what closes the gate."""
    one = box()
    one.tell(event("a"))
    one.want(state())
    assert isinstance(one.next(0), Patch)


def test_the_patch_names_only_what_is_ours() -> None:
    """One condition by type, one label, three annotations, and the uid that guards against a re-created node."""
    body = outbox.patch_body(state(), "2026-01-01T00:10:00Z")
    assert "u" == body["metadata"]["uid"]
    assert {"fabric-readiness.dev/verified": "true"} == body["metadata"]["labels"]
    assert {
        "fabric-readiness.dev/verified-boot-id": "b",
        "fabric-readiness.dev/profile-hash": "p",
        "fabric-readiness.dev/blocked-rung": "",
    } == body["metadata"]["annotations"]
    (condition,) = body["status"]["conditions"]
    assert ("FabricReady", "True", "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z") == (
        condition["type"], condition["status"], condition["lastTransitionTime"], condition["lastHeartbeatTime"],
    )  # fmt: skip


def test_a_node_that_is_not_verified_names_no_boot() -> None:
    """The gate compares boot ids: an unverified node must not have this one's."""
    said = msgspec.structs.replace(state().condition, verified=False)
    body = outbox.patch_body(msgspec.structs.replace(state(), condition=said), "t")
    assert "" == body["metadata"]["annotations"]["fabric-readiness.dev/verified-boot-id"]
    assert {"fabric-readiness.dev/verified": "false"} == body["metadata"]["labels"]


def test_an_event_has_the_same_name_each_time_it_is_sent_and_no_other() -> None:
    """The name depends on what happened and in which boot."""
    names = {
        outbox.event_name("node-a", "boot", "False", "PortDown", "t"),
        outbox.event_name("node-a", "boot", "False", "PortDown", "t"),
        outbox.event_name("node-a", "boot2", "False", "PortDown", "t"),
        outbox.event_name("node-a", "boot", "True", "PortDown", "t"),
    }
    assert 3 == len(names)
    assert all(len(name) <= 253 and name.startswith("node-a.fabric.") for name in names)


@given(
    st.lists(
        st.tuples(st.sampled_from(["want", "ok", "fail", "wait"]), st.integers(0, 3)), max_size=60
    )
)
def test_over_every_history_the_last_wish_is_delivered(steps: list[tuple[str, int]]) -> None:
    """Whatever fails on the way, once the server answers the last state is what it knows, and then it is quiet."""
    one, now = box(), 0.0
    wanted = state(reason="R0")
    one.want(wanted)
    for what, number in steps:
        now += 5
        if what == "want":
            wanted = state(reason=f"R{number}")
            one.want(wanted)
        action = one.next(now)
        if action is not None and what == "ok":
            one.done(action, now)
        elif action is not None and what == "fail":
            one.failed(action, now)
    for _ in range(10):
        now += 70
        if one.delivered != wanted:
            send(one, now)
    assert wanted == one.delivered
    assert one.next(now + 1) in {None, Patch(state=wanted, heartbeat=True)}


def test_what_is_not_told_becomes_overdue() -> None:
    """From the first moment at which something was to be said, and from when a heartbeat was due."""
    one = box()
    assert 0 == one.overdue(50)
    one.want(state())
    action = one.next(100)
    assert action is not None
    one.failed(action, 100)
    one.want(state("False", "PortDown"))
    one.next(130)
    assert 100 == one.overdue(200)
    action = one.next(200)
    assert action is not None
    one.done(action, 200)
    one.next(201)
    assert 0 == one.overdue(201)
    assert 0 == one.overdue(600)
    assert one.overdue(1100) > 100
