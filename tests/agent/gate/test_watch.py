"""The mirror follows a real API server through pages, ends, expiry, silence and restarts."""

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from agent.cluster import connection, errors
from agent.gate import metrics, records, view, watch
from agent.gate.records import NodeView
from tests.agent.gate import objects
from tests.cluster import waiting


class Followed:
    """A watch of a pool's nodes, and what it fills."""

    def __init__(self, pool: objects.Pool, *, page: int, session_seconds: float) -> None:
        self.view = view.View()
        self.counters = metrics.Metrics()
        self.watch = watch.Watch(
            pool.connection,
            watch.Collection(
                what="nodes",
                path="/api/v1/nodes",
                query={"labelSelector": pool.label},
                read=functools.partial(
                    records.node_view, taint_key=objects.KEY, pool_label=pool.label
                ),
            ),
            self.view.nodes,
            self.counters,
            page=page,
            session_seconds=session_seconds,
            margin_seconds=1,
        )

    def node(self, name: str) -> NodeView:
        """The node in the mirror."""
        found = self.view.node(name)
        assert found is not None
        return found

    def breaks(self, cause: str) -> float:
        """How often the watch broke for that cause."""
        labels = {"watch": "nodes", "cause": cause}
        return self.counters.registry.get_sample_value(
            "fabric_gate_watch_breaks_total", labels
        ) or 0.0  # fmt: skip

    def until(self, what: str, check: Callable[[], object], *, seconds: float = 20) -> None:
        """Waits until the mirror is so."""
        waiting.until(what, check, seconds=seconds, every=0.02)


def _says(followed: Followed, name: str, reason: str) -> bool:
    return followed.node(name).reason == reason


@contextlib.contextmanager
def follow(
    pool: objects.Pool, *, page: int = 500, session_seconds: float = 2, version: str = ""
) -> Iterator[Followed]:
    """A running watch, ended afterwards."""
    followed = Followed(pool, page=page, session_seconds=session_seconds)
    followed.watch._version = version
    thread = threading.Thread(target=followed.watch.run, name="watch")
    thread.start()
    try:
        yield followed
    finally:
        followed.watch.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_mirror_is_current_after_the_last_page(pool: objects.Pool) -> None:
    """A list in several pages is taken over whole, and only the pool's nodes are in it."""
    names = {pool.add(f"n{i}") for i in range(7)}
    with follow(pool, page=3) as followed:
        followed.until("sight", lambda: followed.view.nodes.current)
        assert names == followed.view.names()
        assert names == followed.view.wait(0)


def test_changes_arrive(pool: objects.Pool) -> None:
    """What kubelet and agent write is seen; a record that stays the same wakes nobody."""
    with follow(pool) as followed:
        followed.until("sight", lambda: followed.view.nodes.current)
        name = pool.add()
        followed.until("boot id", lambda: followed.view.names() and followed.node(name).boot_id)
        pool.report(name, "False", "PortDown", rung="driver")
        followed.until("condition", lambda: followed.node(name).status)
        seen = followed.node(name)
        assert ("False", "PortDown", "driver") == (seen.status, seen.reason, seen.blocked_rung)
        assert (objects.BOOT, objects.BOOT) == (seen.boot_id, seen.verified_boot_id)
        followed.view.wait(0)
        pool.api.kubectl("annotate", "node", name, "test/heartbeat=1")
        assert set() == followed.view.wait(0.5)
        pool.remove(name)
        followed.until("deletion", lambda: not followed.view.names())
        assert {name} == followed.view.wait(0)


def test_node_that_loses_its_pool_label_leaves(pool: objects.Pool) -> None:
    """A node without the label is not the gate's any more."""
    name = pool.add()
    with follow(pool) as followed:
        followed.until("the node", lambda: followed.view.names() == {name})
        pool.api.kubectl("label", "node", name, f"{pool.label}-")
        followed.until("its leaving", lambda: not followed.view.names())


def test_watch_that_ends_is_resumed(pool: objects.Pool) -> None:
    """Clean ends of the watch lose nothing, need no list and blind nobody."""
    name = pool.add()
    with follow(pool, session_seconds=1) as followed:
        followed.until("sight", lambda: followed.view.nodes.current)
        followed.watch._list = None  # type: ignore[method-assign,assignment]  # a list would raise
        for round_ in range(8):
            reason = f"Round{round_}"
            pool.report(name, "False", reason)
            followed.until("the change", functools.partial(_says, followed, name, reason))
            threading.Event().wait(0.4)
            assert followed.view.nodes.current
        followed.view.wait(0)
        threading.Event().wait(1.5)
        assert set() == followed.view.wait(0)  # nothing comes twice
        assert 0 == followed.breaks("failed") + followed.breaks("expired")


def test_expired_history_leads_to_a_new_list(pool: objects.Pool) -> None:
    """A version that the server has no history of any more costs a list, not the gate."""
    name = pool.add()
    pool.api.stop_server()
    pool.api.start_server()  # what it remembers starts here
    with follow(pool, version="1") as followed:
        followed.until("the node", lambda: followed.view.names() == {name})
        assert 1 == followed.breaks("expired")


def test_silent_server_blinds_and_is_noticed(pool: objects.Pool) -> None:
    """A connection that is open and dead blinds the mirror; it sees again with the server."""
    name = pool.add()
    with follow(pool, session_seconds=1) as followed:
        followed.until("sight", lambda: followed.view.nodes.current)
        pool.api.server.pause()
        try:
            followed.until("blindness", lambda: not followed.view.nodes.current)
            assert name in followed.view.names()
        finally:
            pool.api.server.resume()
        followed.until("sight", lambda: followed.view.nodes.current, seconds=60)
        assert 1 <= followed.breaks("failed")


def test_restart_of_the_server_loses_nothing(pool: objects.Pool) -> None:
    """Nodes that came and went around an outage are there and gone afterwards."""
    stays, goes = pool.add("stays"), pool.add("goes")
    with follow(pool) as followed:
        followed.until("both", lambda: followed.view.names() == {stays, goes})
        pool.api.stop_server()
        followed.until("blindness", lambda: not followed.view.nodes.current)
        assert {stays, goes} == followed.view.names()
        pool.api.start_server()
        pool.remove(goes)
        comes = pool.add("comes")
        followed.until(
            "sight", lambda: followed.view.nodes.current and followed.view.names() == {stays, comes},
            seconds=60,
        )  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"metadata": {}}, {"metadata": {"resourceVersion": "1"}, "items": 5},
     {"metadata": {"resourceVersion": 1}}, {"metadata": {"resourceVersion": "1"}, "items": {"a": 1}}],
)  # fmt: skip
def test_what_is_no_list_is_refused(answer: object) -> None:
    """A page without a version or objects is a failed call, and ends no thread."""
    with pytest.raises(errors.Unreachable, match="the list of nodes is no list"):
        watch._page(answer, "nodes")


# --- Whatever comes in which order, the mirror ends where the server is ---

_steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "delete", "bookmark", "replay", "break", "expire"]),
        st.sampled_from("abc"),
        st.sampled_from(["True", "False", "Unknown"]),
    ),
    max_size=40,
)


@given(_steps)
def test_mirror_ends_where_the_server_is(steps: list[tuple[str, str, str]]) -> None:
    """Changes, bookmarks, events that come again after a resume, breaks, and history that expired."""
    server: dict[str, dict[str, Any]] = {}
    log: list[dict[str, Any]] = []
    picture = view.View()
    collection = watch.Collection(
        what="nodes",
        path="/",
        query={},
        read=functools.partial(records.node_view, taint_key="k", pool_label="p"),
    )
    api = connection.Connection(client.Configuration())
    one = watch.Watch(api, collection, picture.nodes, metrics.Metrics())
    taken = 0
    for what, name, status in steps:
        _happen(server, log, what, name, status)
        if what == "replay":
            taken = max(0, taken - 3)  # a resume from the last version that was noted
        elif what == "expire":
            found = {n: records.node_view(raw, "k", "p") for n, raw in server.items()}
            picture.nodes.replace({n: seen for n, seen in found.items() if seen})
            taken = len(log)
        if what != "break":
            for event in log[taken:]:
                one._take(json.dumps(event).encode())
            taken = len(log)
    for event in log[taken:]:
        one._take(json.dumps(event).encode())
    assert {name: raw["status"]["conditions"][0]["status"] for name, raw in server.items()} == {
        name: seen.status for name, seen in picture.nodes.records.items()
    }


def _happen(
    server: dict[str, dict[str, Any]], log: list[dict[str, Any]], what: str, name: str, status: str
) -> None:
    """A change on the server, and what its watches are told of it."""
    version = len(log) + 1
    node = _raw(name, status, version)
    if what == "set":
        log.append({"type": "MODIFIED" if name in server else "ADDED", "object": node})
        server[name] = node
    elif what == "delete" and name in server:
        del server[name]
        log.append({"type": "DELETED", "object": node})
    elif what == "bookmark":
        log.append({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})


def _raw(name: str, status: str, version: int) -> dict[str, Any]:
    condition = {"type": "FabricReady", "status": status}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "status": {"conditions": [condition]},
    }
