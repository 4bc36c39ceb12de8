"""The FabricNode's status says what stands, since when, and is no news while nothing changed."""

import itertools
from typing import Any

import msgspec
from hypothesis import given

from agent.node import condition, fabricnode
from agent.node import ledger as ledgers
from agent.node.fabricnode import EMPTY, Rail, Status
from agent.node.ledger import Ledger
from agent.node.recheck import Recheck
from probes.contract import Outcome, Verdict
from tests.agent.node.rungs import (
    BOOT,
    FAIL,
    HYSTERESIS,
    LADDER,
    NAMES,
    PASS,
    empty,
    record,
    verified,
)
from tests.agent.node.test_ledger import STEPS

DEVICES, PORTS, LOOPBACK = NAMES


def _now(ledger: Ledger, at: str = "2026-01-01T00:00:00Z", recheck: str = "") -> fabricnode.Now:
    said = condition.decide(ledger, LADDER)
    return fabricnode.Now(ledger=ledger, ladder=LADDER, condition=said, recheck=recheck, at=at)


def _measured(rate: float, at: float, expected: float | None = 1e9) -> Ledger:
    values = {"measured_bits_per_second": rate}
    if expected is not None:
        values["expected_bits_per_second"] = expected
    part = Verdict(
        outcome=PASS,
        reason="LoopbackPassed",
        message="m",
        part="mlx5_0/1",
        values=values,
        notes={"expectation": "port rate"},
    )
    whole = Verdict(outcome=PASS, reason="LoopbackPassed", message="m", parts=(part,))
    run = ledgers.Run(probe=LOOPBACK, verdict=whole, started=at - 1, ended=at)
    return ledgers.record(verified(), run, LADDER, HYSTERESIS)


def test_rungs_in_order_with_the_worst_of_each() -> None:
    """Before the first run all are pending; a failure says why, and since when it is so."""
    first = fabricnode.describe(_now(empty()), EMPTY)
    assert [
        ("inventory", "pending"),
        ("driver", "pending"),
        ("loopback", "pending"),
    ] == [(one.name, one.outcome) for one in first.rungs]
    assert (BOOT, "unknown", "inventory") == (first.bootID, first.outcome, first.blockedRung)
    ledger = record(verified(), PORTS, FAIL, 200, reason="PortDown")
    down = fabricnode.describe(_now(ledger, "2026-01-01T01:00:00Z"), first)
    driver = down.rungs[1]
    assert ("fail", "PortDown", "driver.ports: rxe0/1 fail", "2026-01-01T01:00:00Z") == (
        driver.outcome, driver.reason, driver.message, driver.since,
    )  # fmt: skip
    later = fabricnode.describe(_now(ledger, "2026-01-01T02:00:00Z"), down)
    assert down == later


def test_another_boot_starts_every_since_anew_and_keeps_the_transitions() -> None:
    """What was so in the boot before is no age."""
    old = fabricnode.describe(_now(verified()), EMPTY)
    old = msgspec.structs.replace(old, bootID="another")
    new = fabricnode.describe(_now(verified(), "2026-01-02T00:00:00Z"), old)
    assert {"2026-01-02T00:00:00Z"} == {one.since for one in new.rungs}
    assert old.transitions == new.transitions


def test_a_rate_is_news_when_it_moved_by_more_than_a_twentieth() -> None:
    """Measured every six hours on thousands of nodes: the same again is not written."""
    first = fabricnode.describe(_now(_measured(1e9, 300)), EMPTY)
    assert (
        Rail(
            device="mlx5_0",
            port=1,
            measured_bits_per_second=1_000_000_000,
            expected_bits_per_second=1_000_000_000,
            source="port rate",
            time="2026-01-01T00:00:00Z",
        ),
    ) == first.rails
    later = "2026-01-01T06:00:00Z"
    assert first == fabricnode.describe(_now(_measured(0.96e9, 9000), later), first)
    moved = fabricnode.describe(_now(_measured(0.94e9, 9000), later), first)
    assert (940_000_000, later) == (
        moved.rails[0].measured_bits_per_second,
        moved.rails[0].time,
    )
    other = fabricnode.describe(_now(_measured(1e9, 9000, expected=None), later), first)
    assert other.rails[0].expected_bits_per_second is None
    assert b"expectedBitsPerSecond" not in msgspec.json.encode(other)


@given(STEPS)
def test_status_is_bounded_and_repeats_nothing(
    steps: list[tuple[str, Outcome, float, bool]],
) -> None:
    """Over every history: ten transitions at most, none twice in a row, and nothing new without a change."""
    ledger, now, said = empty(), 0.0, EMPTY
    for number, (name, outcome, pause, slow) in enumerate(steps):
        now += pause
        ledger = record(ledger, name, outcome, now, slow=slow)
        said = fabricnode.describe(_now(ledger, f"t{number}"), said)
        assert said == fabricnode.describe(_now(ledger, "later"), said)
        kinds = [(one.status, one.reason) for one in said.transitions]
        assert 1 <= len(kinds) <= 10
        assert all(a != b for a, b in itertools.pairwise(kinds))
        assert len(msgspec.json.encode(said)) < 8 * 1024
        again = msgspec.json.decode(msgspec.json.encode(said), type=Status)
        assert said == again


def test_request_is_done_when_everything_ended_after_it() -> None:
    """A new text asks, the same one does not ask again, and it is done once."""
    one = Recheck("old")
    assert not one.asked("", 100)
    assert not one.asked("old", 100)
    assert one.asked("new", 100)
    assert not one.asked("new", 101)
    ledger: Any = verified()
    assert not one.done(ledger, LADDER)
    for name in NAMES:
        assert not one.done(ledger, LADDER)
        ledger = record(ledger, name, PASS, 150)
    assert one.done(ledger, LADDER)
    assert "new" == one.last_done
    assert not one.done(ledger, LADDER)
    assert not one.asked("new", 200)


def test_request_does_not_wait_for_what_cannot_run() -> None:
    """Bytes do not move while a port is down: the request is done when everything else was looked at."""
    one = Recheck("")
    assert one.asked("ticket", 300)
    ledger = record(verified(), DEVICES, PASS, 310)
    assert not one.done(ledger, LADDER)
    assert one.done(record(ledger, PORTS, FAIL, 310), LADDER)
