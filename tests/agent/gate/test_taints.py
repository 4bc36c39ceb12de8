"""The gate's taint comes and goes, and nobody else's is touched, whoever writes in between."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator

import pytest

from agent.cluster import errors
from agent.gate import taints
from agent.gate.decision import Cause, Decision
from agent.gate.records import NodeView
from tests.agent.gate import objects
from tests.agent.gate.objects import KEY, OTHERS

CLOSE = Decision(taint=True, value="driver", cause=Cause.NOT_READY, why="test")
OPEN = Decision(taint=False, value="", cause=Cause.READY, why="test")
OURS = {"key": KEY, "value": "driver", "effect": "NoSchedule"}


@pytest.fixture
def writer(pool: objects.Pool) -> taints.Writer:
    """The writer of the pool's taints."""
    return taints.Writer(pool.connection, key=KEY, pool_label=pool.label)


def test_taint_comes_and_goes_between_the_taints_of_others(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """Both directions leave the other taints as they are, in their order."""
    first = {"key": "example.org/first", "effect": "NoSchedule"}
    same_key = {"key": KEY, "value": "by-hand", "effect": "NoExecute"}
    node = pool.add(taints=[first, same_key])
    before = pool.taints(node)
    assert (taints.Written.DONE, CLOSE) == writer.settle(node, lambda _: CLOSE)
    assert [*before, OURS] == pool.taints(node)
    pool.api.kubectl("taint", "node", node, "example.org/later=x:NoSchedule")
    assert (taints.Written.DONE, OPEN) == writer.settle(node, lambda _: OPEN)
    later = {"key": "example.org/later", "value": "x", "effect": "NoSchedule"}
    assert [later, *before] == pool.taints(node)


def test_first_and_last_taint_of_a_node(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node with no taint at all gets ours, and has none again afterwards."""
    node = pool.add()
    writer.settle(node, lambda _: CLOSE)
    assert [OURS] == pool.taints(node)
    writer.settle(node, lambda _: OPEN)
    assert [] == pool.taints(node)


def test_startup_taint_is_taken_over_with_a_new_value(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """The taint that a kubelet registered with is ours: it changes its value in its place."""
    node = pool.add(taints=[{"key": KEY, "value": "unverified", "effect": "NoSchedule"}, OTHERS])
    *_, maintenance = pool.taints(node)
    writer.settle(node, lambda _: CLOSE)
    assert [OURS, maintenance] == pool.taints(node)


@pytest.mark.parametrize("decision", [CLOSE, OPEN])
def test_nothing_is_written_when_nothing_changes(
    pool: objects.Pool, writer: taints.Writer, decision: Decision
) -> None:
    """A node that is as it should be keeps its resourceVersion."""
    node = pool.add()
    writer.settle(node, lambda _: decision)
    before = pool.get(node)["metadata"]["resourceVersion"]
    assert taints.Written.UNCHANGED == writer.settle(node, lambda _: decision)[0]
    assert before == pool.get(node)["metadata"]["resourceVersion"]


def test_changed_node_is_decided_about_again(pool: objects.Pool, writer: taints.Writer) -> None:
    """When the node changes between reading and writing, the reason is asked for anew."""
    node = pool.add()
    asked: list[NodeView] = []

    def decide(seen: NodeView) -> Decision:
        asked.append(seen)
        if len(asked) == 1:  # somebody is faster than our write
            pool.report(node, "True", "FabricVerified")
        return OPEN if seen.status == "True" else CLOSE

    assert (taints.Written.UNCHANGED, OPEN) == writer.settle(node, decide)
    assert ["", "True"] == [seen.status for seen in asked]
    assert [] == pool.taints(node)


def test_node_that_never_holds_still_is_given_up_for_now(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """After a few lost races the writer says so, and has written nothing."""
    node = pool.add()
    races = itertools.count()

    def decide(_: NodeView) -> Decision:
        pool.api.kubectl("annotate", "node", node, "--overwrite", f"test/race={next(races)}")
        return CLOSE

    with pytest.raises(errors.Conflict):
        writer.settle(node, decide)
    assert taints.ATTEMPTS == next(races)
    assert [] == pool.taints(node)


def test_deleted_node_is_gone(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node that is no more is no error."""
    node = pool.add()
    pool.remove(node)
    assert (taints.Written.GONE, None) == writer.settle(node, lambda _: CLOSE)


def test_node_that_left_the_pool_is_left_alone(pool: objects.Pool, writer: taints.Writer) -> None:
    """A node whose pool label an administrator took away is not tainted by a late decision."""
    node = pool.add()
    pool.api.kubectl("label", "node", node, f"{pool.label}-")
    assert (taints.Written.GONE, None) == writer.settle(node, lambda _: CLOSE)
    assert [] == pool.taints(node)


def test_created_anew_node_is_not_written_from_the_old_ones_copy(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """A node that was deleted and registered again in between is decided about as the new one."""
    node = pool.add()
    uids: list[str] = []

    def decide(seen: NodeView) -> Decision:
        uids.append(seen.uid)
        if len(uids) == 1:
            pool.remove(node)
            pool.add()
        return CLOSE

    assert taints.Written.DONE == writer.settle(node, decide)[0]
    assert 2 == len(set(uids))


def test_nothing_is_lost_beside_a_controller_that_hammers_the_node(
    pool: objects.Pool, writer: taints.Writer
) -> None:
    """Of two writers of the same list neither loses a taint, in many rounds of both."""
    node = pool.add(taints=[OTHERS])
    rounds = 0
    with _hammer(pool, node) as hammered:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            # Against what is there, so that each success changes something.
            with contextlib.suppress(errors.Conflict):
                written, _ = writer.settle(node, lambda seen: CLOSE if seen.taint is None else OPEN)
                rounds += written is taints.Written.DONE
            kept = {taint["key"] for taint in pool.taints(node)}
            assert OTHERS["key"] in kept
    assert rounds >= 4
    assert len(hammered) >= 4
    assert [] == [lost for lost in hammered if lost]


@contextlib.contextmanager
def _hammer(pool: objects.Pool, node: str) -> Iterator[list[str]]:
    """Adds and removes a taint of its own as another controller does: read, then write what was read.

    Yields a list that gets, for each write, what had been lost of its own since the last one.
    """
    stop = threading.Event()
    said: list[str] = []
    connection = objects.connect(pool.api)
    mine = {"key": "example.org/hammer", "effect": "NoSchedule"}

    def run() -> None:
        there = False
        while not stop.is_set():
            raw = connection.get(f"/api/v1/nodes/{node}")
            found = raw["spec"].get("taints", [])
            has = any(taint["key"] == mine["key"] for taint in found)
            kept = [taint for taint in found if taint["key"] != mine["key"]]
            version = raw["metadata"]["resourceVersion"]
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/spec/taints", "value": kept if has else [mine, *kept]},
            ]
            try:
                connection.json_patch(f"/api/v1/nodes/{node}", patch)
            except errors.Conflict:
                continue
            said.append("" if has == there else json.dumps(found))
            there = not has

    thread = threading.Thread(target=run, name="hammer")
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(30)
