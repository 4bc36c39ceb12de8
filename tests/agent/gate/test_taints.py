"""The gate's taint comes and goes, and nobody else's is touched, whoever writes in between."""

import contextlib
import functools
import json
import time
from collections.abc import Callable

import pytest

from agent.cluster import errors
from agent.gate import records, taints
from agent.gate.decision import Cause, Decision
from agent.gate.records import NodeView
from tests.agent.gate import objects
from tests.agent.gate.objects import KEY, OTHERS

CLOSE = Decision(taint=True, value="driver", cause=Cause.NOT_READY, why="test")
OPEN = Decision(taint=False, value="", cause=Cause.READY, why="test")
NOW = 1_800_000_000.0
OURS = {"key": KEY, "value": "driver", "effect": "NoSchedule", "timeAdded": "2027-01-15T08:00:00Z"}


@pytest.fixture
def writer(pool: objects.Pool) -> taints.Writer:
    """The writer of the pool's taints."""
    return _writer(pool)


def _writer(pool: objects.Pool) -> taints.Writer:
    read = functools.partial(records.node_view, taint_key=KEY, pool_label=pool.label)
    return taints.Writer(objects.connect(pool.api), read, key=KEY, selector=pool.label)


def _settle(
    writer: taints.Writer,
    node: NodeView,
    said: Decision,
    decide: Callable[[NodeView], Decision] | None = None,
) -> taints.Written:
    return writer.settle(node, said, decide or (lambda _: said), NOW)


def test_taint_comes_and_goes_between_the_taints_of_others(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """Both directions leave the other taints as they are, in their order."""
    first = {"key": "example.org/first", "effect": "NoSchedule"}
    same_key = {"key": KEY, "value": "by-hand", "effect": "NoExecute"}
    node = pool.add(taints=[first, same_key])
    before = pool.taints(node)
    assert taints.Written.DONE == _settle(writer, pool.view(node), CLOSE)
    assert [*before, OURS] == pool.taints(node)
    pool.api.kubectl("taint", "node", node, "example.org/later=x:NoSchedule")
    assert taints.Written.DONE == _settle(writer, pool.view(node), OPEN)
    later = {"key": "example.org/later", "value": "x", "effect": "NoSchedule"}
    assert [later, *before] == pool.taints(node)


def test_first_and_last_taint_of_a_node(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node with no taint at all gets ours, and has none again afterwards."""
    node = pool.add()
    _settle(writer, pool.view(node), CLOSE)
    assert [OURS] == pool.taints(node)
    _settle(writer, pool.view(node), OPEN)
    assert [] == pool.taints(node)


def test_startup_taint_is_taken_over_with_a_new_value(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """The taint that a kubelet registered with is ours: it changes its value in its place, and keeps its age."""
    node = pool.add(taints=[{"key": KEY, "value": "unverified", "effect": "NoSchedule"}, OTHERS])
    *_, maintenance = pool.taints(node)
    _settle(writer, pool.view(node), CLOSE)
    assert [OURS, maintenance] == pool.taints(node)
    later = Decision(taint=True, value="loopback", cause=Cause.NOT_READY, why="test")
    writer.settle(pool.view(node), later, lambda _: later, NOW + 60)
    assert [{**OURS, "value": "loopback"}, maintenance] == pool.taints(node)
    assert NOW == pool.view(node).taint_since


@pytest.mark.parametrize("decision", [CLOSE, OPEN])
def test_nothing_is_written_when_nothing_changes(
    pool: objects.Pool, writer: taints.Writer, decision: Decision
) -> None:
    """A node that is so already, seen in an old copy, keeps its resourceVersion."""
    node = pool.add()
    stale = pool.view(node)
    if decision is OPEN:
        _settle(writer, stale, CLOSE)
        stale = pool.view(node)
    _settle(writer, stale, decision)
    before = pool.get(node)["metadata"]["resourceVersion"]
    assert taints.Written.UNCHANGED == _settle(writer, stale, decision)
    assert before == pool.get(node)["metadata"]["resourceVersion"]


def test_changed_node_is_decided_about_again(pool: objects.Pool, writer: taints.Writer) -> None:
    """When the node changed since it was seen, the reason is asked for anew."""
    node = pool.add()
    stale = pool.view(node)
    pool.report(node, "True", "FabricVerified")
    asked: list[NodeView] = []

    def decide(seen: NodeView) -> Decision:
        asked.append(seen)
        return OPEN if seen.status == "True" else CLOSE

    assert taints.Written.OUTDATED == _settle(writer, stale, CLOSE, decide)
    assert ["True"] == [seen.status for seen in asked]
    assert [] == pool.taints(node)


def test_change_of_something_else_costs_a_second_look_only(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """A heartbeat in between makes the copy old, and the reason holds."""
    node = pool.add()
    stale = pool.view(node)
    pool.api.kubectl("annotate", "node", node, "test/heartbeat=1")
    assert taints.Written.DONE == _settle(writer, stale, CLOSE)
    assert [OURS] == pool.taints(node)


def test_node_that_never_holds_still_is_given_up_for_now(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """After a few lost races the writer says so, and has written nothing."""
    node = pool.add()
    races: list[NodeView] = []

    def decide(seen: NodeView) -> Decision:
        races.append(seen)
        pool.api.kubectl("annotate", "node", node, "--overwrite", f"test/race={len(races)}")
        return CLOSE

    stale = pool.view(node)
    decide(stale)
    with pytest.raises(errors.Conflict):
        _settle(writer, stale, CLOSE, decide)
    assert taints.ATTEMPTS == len(races)
    assert [] == pool.taints(node)


def test_deleted_node_is_gone(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node that is no more is no error."""
    node = pool.add()
    seen = pool.view(node)
    pool.remove(node)
    assert taints.Written.GONE == _settle(writer, seen, CLOSE)


def test_node_that_left_the_pool_is_left_alone(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node whose pool label an administrator took away is not tainted by a late decision."""
    node = pool.add()
    seen = pool.view(node)
    pool.api.kubectl("label", "node", node, f"{pool.label}-")
    assert taints.Written.GONE == _settle(writer, seen, CLOSE)
    assert [] == pool.taints(node)


def test_node_that_left_the_pool_is_released(pool: objects.Pool, writer: taints.Writer) -> None:
    """Our taint goes from a node that is no more in the pool, and stays on one that is."""
    node = pool.add(taints=[OTHERS])
    others = pool.taints(node)
    _settle(writer, pool.view(node), CLOSE)
    assert taints.Written.OUTDATED == writer.release(node)
    assert [*others, OURS] == pool.taints(node)
    pool.api.kubectl("label", "node", node, f"{pool.label}-")
    assert taints.Written.DONE == writer.release(node)
    assert others == pool.taints(node)
    assert taints.Written.UNCHANGED == writer.release(node)
    pool.remove(node)
    assert taints.Written.GONE == writer.release(node)


def test_created_anew_node_is_not_written_from_the_old_ones_copy(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """A node that was deleted and registered again in between is decided about as the new one."""
    node = pool.add()
    old = pool.view(node)
    pool.remove(node)
    pool.add()
    asked: list[NodeView] = []

    def decide(seen: NodeView) -> Decision:
        asked.append(seen)
        return CLOSE

    assert taints.Written.DONE == _settle(writer, old, CLOSE, decide)
    assert 1 == len(asked)
    assert old.uid != asked[0].uid


def test_nothing_is_lost_among_three_writers_that_hammer_the_same_nodes(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """Two other controllers and two gates at the same nodes: nobody's taint is lost or changed."""
    nodes = [pool.add("one", taints=[OTHERS]), pool.add("two", taints=[OTHERS])]
    kept = {node: json.dumps(pool.taints(node)) for node in nodes}
    rounds = 0
    with contextlib.ExitStack() as stack:
        hammered = [
            stack.enter_context(objects.hammer(pool.api, node, f"example.org/hammer-{number}"))
            for node in nodes
            for number in range(2)
        ]
        second = _writer(pool)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for node in nodes:
                for one in (writer, second):
                    # Against what is there, so that each success changes something.
                    seen = pool.view(node)
                    said = CLOSE if seen.taint is None else OPEN
                    with contextlib.suppress(errors.Conflict):
                        rounds += _settle(one, seen, said) is taints.Written.DONE
                mine = [taint for taint in pool.taints(node) if taint["key"] == OTHERS["key"]]
                assert kept[node] == json.dumps(mine)
    assert rounds >= 4
    for said_ in hammered:
        assert len(said_) >= 4
        assert [] == [lost for lost in said_ if lost]
