"""The FabricNode CRD bounds what is written into it, and reads like a dashboard."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.cluster import connection, errors
from agent.gate import fabricnodes
from agent.node.fabricnode import Rail, Rung, Status, Transition
from tests.agent.gate import objects
from tests.cluster import controlplane

TIME = "2026-01-01T00:00:00Z"
NAME = "crd-test"
LONG = "é" * 1024  # characters count, not bytes

RUNG = Rung(name="r" * 63, outcome="fail", reason="R" * 128, message=LONG, since=TIME)
RAIL = Rail(
    device="d" * 64,
    port=255,
    measured_bits_per_second=2**62,
    expected_bits_per_second=2**62,
    source=LONG,
    time=TIME,
)
TRANSITION = Transition(time=TIME, status="False", reason="PortDown", message=LONG)
FULL = Status(
    bootID="b" * 128,
    outcome="fail",
    blockedRung="r" * 63,
    recheck="x" * 64,
    rungs=tuple(msgspec.structs.replace(RUNG, name=f"rung-{i}") for i in range(16)),
    rails=tuple(msgspec.structs.replace(RAIL, device=f"mlx5_{i}") for i in range(64)),
    transitions=(TRANSITION,) * 10,
)


@pytest.fixture(scope="module")
def server(apiserver: controlplane.ApiServer) -> Iterator[connection.Connection]:
    """An API server with one FabricNode, which has nothing in it."""
    api = objects.connect(apiserver)
    kind = {"apiVersion": fabricnodes.GROUP_VERSION, "kind": "FabricNode"}
    api.create(fabricnodes.PATH, {**kind, "metadata": {"name": NAME}})
    yield api
    api.delete(f"{fabricnodes.PATH}/{NAME}")


def _report(server: connection.Connection, status: Status) -> None:
    path = f"{fabricnodes.PATH}/{NAME}/status?dryRun=All"
    server.merge_patch(path, {"status": msgspec.to_builtins(status)})


def test_all_that_an_agent_may_say_fits(server: connection.Connection) -> None:
    """Every text and list as long as it may be: the agent's own bounds are not wider than the CRD's."""
    _report(server, FULL)
    for status in ("pass", "unknown"):
        _report(server, Status(bootID="", outcome=status))
    for outcome in ("pass", "skip", "unknown", "pending"):
        rung = msgspec.structs.replace(RUNG, outcome=outcome)
        _report(server, Status(bootID="b1", outcome="fail", rungs=(rung,)))


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "maybe"},
        {"bootID": "b" * 129},
        {"blockedRung": "r" * 64},
        {"recheck": "x" * 65},
        {"rungs": tuple(msgspec.structs.replace(RUNG, name=f"r{i}") for i in range(17))},
        {"rungs": (RUNG, RUNG)},
        {"rungs": (msgspec.structs.replace(RUNG, message=LONG + "x"),)},
        {"rungs": (msgspec.structs.replace(RUNG, outcome="maybe"),)},
        {"rails": tuple(msgspec.structs.replace(RAIL, device=f"d{i}") for i in range(65))},
        {"rails": (RAIL, RAIL)},
        {"rails": (msgspec.structs.replace(RAIL, port=256),)},
        {"rails": (msgspec.structs.replace(RAIL, measured_bits_per_second=-1),)},
        {"transitions": (TRANSITION,) * 11},
        {"transitions": (msgspec.structs.replace(TRANSITION, status="Yes"),)},
        {"transitions": (msgspec.structs.replace(TRANSITION, time="yesterday"),)},
    ],
)
def test_what_is_too_much_or_wrong_is_refused(
    server: connection.Connection, changes: dict[str, Any]
) -> None:
    """The server bounds an object whatever its agent does."""
    status = msgspec.structs.replace(Status(bootID="b1", outcome="fail"), **changes)
    with pytest.raises(errors.Conflict) as caught:
        _report(server, status)
    assert "invalid" == caught.value.kind


@pytest.mark.parametrize(
    "spec",
    [
        {"override": {"until": TIME}},
        {"override": {"reason": "drill"}},
        {"override": {"reason": "", "until": TIME}},
        {"override": {"reason": "r" * 257, "until": TIME}},
        {"override": {"reason": "drill", "until": "tomorrow"}},
        {"adopted": {"since": TIME}},
        {"recheck": "x" * 65},
    ],
)
def test_an_override_needs_a_reason_and_an_end(
    server: connection.Connection, spec: dict[str, Any]
) -> None:
    """A human's mistake is told at once, and not found out by a node that stays closed."""
    with pytest.raises(errors.Conflict) as caught:
        server.merge_patch(f"{fabricnodes.PATH}/{NAME}?dryRun=All", {"spec": spec})
    assert "invalid" == caught.value.kind


def test_list_reads_like_a_dashboard(
    apiserver: controlplane.ApiServer, server: connection.Connection
) -> None:
    """Outcome, blocked rung, the last transition's reason; wide: until when a human opened it."""
    until = "2099-01-01T00:00:00Z"
    adopted = {"bootID": "b1", "since": TIME}
    spec = {"override": {"reason": "x", "until": until}, "adopted": adopted}
    server.merge_patch(f"{fabricnodes.PATH}/{NAME}", {"spec": spec})
    before = {"time": TIME, "status": "Unknown", "reason": "Verifying"}
    now = {"time": TIME, "status": "False", "reason": "PortDown"}
    status = {"outcome": "fail", "blockedRung": "driver", "transitions": [before, now]}
    server.merge_patch(f"{fabricnodes.PATH}/{NAME}/status", {"status": status})
    heads, row = apiserver.kubectl("get", "fn", NAME, "--output=wide").splitlines()
    expected = "NAME FABRIC BLOCKED REASON SINCE OVERRIDE ADOPTED AGE"
    assert expected.split() == heads.split()
    name, fabric, blocked, reason, since, override, took, age = row.split()
    assert (NAME, "fail", "driver", "PortDown", until) == (name, fabric, blocked, reason, override)
    assert "<invalid>" not in (since, took, age)
