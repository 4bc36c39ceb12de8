"""The condition says the worst, the lowest first, with evidence; it is True only when everything stands."""

import dataclasses

from hypothesis import given

from agent.node import condition
from agent.node import ledger as ledgers
from agent.node.condition import Condition
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger
from probes.contract import Outcome, Verdict
from tests.agent.node.rungs import (
    FAIL,
    HYSTERESIS,
    LADDER,
    NAMES,
    PASS,
    SKIP,
    UNKNOWN,
    empty,
    info,
    record,
    verdict,
    verified,
)  # fmt: skip
from tests.agent.node.test_ledger import STEPS

DEVICES, PORTS, LOOPBACK = NAMES


def decide(ledger: Ledger, ladder: Ladder = LADDER, previous: Condition | None = None) -> Condition:
    """Shorter."""
    return condition.decide(ledger, ladder, previous)


def test_a_new_boot_is_verifying() -> None:
    """Nothing has run: Unknown, and the lowest rung blocks."""
    said = decide(empty())
    assert ("Unknown", "Verifying", "inventory", False) == (
        said.status, said.reason, said.blocked_rung, said.verified,
    )  # fmt: skip
    assert (
        "not run yet in this boot: inventory.devices, driver.ports, loopback.bandwidth"
        == said.message
    )


def test_all_standing_is_true_with_the_evidence() -> None:
    """The message names the rungs, the boot, what moved, and that peers were not asked."""
    said = decide(verified())
    assert ("True", "FabricVerified", "", True) == (
        said.status, said.reason, said.blocked_rung, said.verified,
    )  # fmt: skip
    assert "inventory, driver, loopback passed in boot 5a0c2a0e" in said.message
    assert "loopback.bandwidth: rxe0/1 pass" in said.message
    assert said.message.endswith("; peers not asked")


def test_the_lowest_failing_rung_speaks() -> None:
    """Its reason and part, which run it was, and what else fails."""
    ledger = record(verified(), LOOPBACK, FAIL, 200, reason="DataCorrupted")
    ledger = record(ledger, PORTS, FAIL, 201, reason="PortDown")
    said = decide(ledger)
    assert ("False", "PortDown", "driver", True) == (
        said.status, said.reason, said.blocked_rung, said.verified,
    )  # fmt: skip
    assert (
        "driver.ports: rxe0/1 fail (run 2, 201 s after boot); also: loopback.bandwidth"
        == said.message
    )


def test_unknown_is_said_with_its_reason() -> None:
    """A rung below everything that has not run is what to look at, not the waiting ones above it."""
    said = decide(record(empty(), DEVICES, UNKNOWN, 1, reason="VerbsUnreadable"))
    assert ("Unknown", "VerbsUnreadable", "inventory") == (
        said.status,
        said.reason,
        said.blocked_rung,
    )


def test_unknown_above_what_has_not_run_is_verifying() -> None:
    """The lower rung that has not run yet comes first."""
    said = decide(record(empty(), PORTS, UNKNOWN, 1))
    assert ("Unknown", "Verifying", "inventory") == (said.status, said.reason, said.blocked_rung)


def test_a_failure_outranks_what_is_unknown() -> None:
    """FAIL that was seen is said before UNKNOWN of a lower rung."""
    ledger = record(record(empty(), DEVICES, UNKNOWN, 1), PORTS, FAIL, 2, reason="PortDown")
    assert "PortDown" == decide(ledger).reason


def test_what_was_put_in_doubt_is_verified_again_before_true() -> None:
    """After the port came back the loopback runs first."""
    ledger = record(verified(), PORTS, FAIL, 200)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    said = decide(ledger)
    assert ("Unknown", "Verifying", "loopback") == (said.status, said.reason, said.blocked_rung)
    assert "True" == decide(record(ledger, LOOPBACK, PASS, 240)).status


def test_the_message_stays_while_status_and_reason_do() -> None:
    """New evidence for the same thing rewrites nothing."""
    first = decide(record(verified(), PORTS, FAIL, 200, reason="PortDown"))
    ledger = record(verified(), PORTS, FAIL, 900, reason="PortDown")
    assert first.message == decide(ledger, previous=first).message
    other = decide(record(verified(), PORTS, FAIL, 900, reason="NoSubnetManager"), previous=first)
    assert first.message != other.message


def test_the_message_names_what_is_wrong_now() -> None:
    """Another port, another probe, or one more, for the same reason: old words lead to the wrong cable."""
    ledger = record(verified(), PORTS, FAIL, 200, reason="PortDown")
    first = decide(ledger)
    moved = _ports_down("mlx5_7/1")
    ledger = ledgers.record(
        ledger,
        ledgers.Run(probe=PORTS, verdict=moved, started=210, ended=210),
        LADDER,
        HYSTERESIS,
    )
    said = decide(ledger, previous=first)
    assert "mlx5_7/1 is DOWN" in said.message
    assert "(run 3, 210 s after boot)" in said.message
    more = record(ledger, DEVICES, FAIL, 220, reason="PortDown")
    assert decide(more, previous=said).message.startswith("inventory.devices: ")


def _ports_down(*names: str) -> Verdict:
    parts = tuple(
        Verdict(outcome=FAIL, reason="PortDown", message=f"{name} is DOWN", part=name)
        for name in names
    )
    message = "; ".join(part.message for part in parts)
    return Verdict(outcome=FAIL, reason="PortDown", message=message, parts=parts)


def test_climbing_the_ladder_is_no_news() -> None:
    """While it is Verifying nothing changes that would be written, whichever rung is next."""
    first = decide(empty())
    assert first == decide(record(empty(), DEVICES, PASS, 1), previous=first)


def test_nothing_but_skips_is_not_true() -> None:
    """A node where no bytes moved says that nothing is proven."""
    ledger = empty()
    for name in NAMES:
        ledger = record(ledger, name, SKIP, 1)
    said = decide(ledger)
    assert ("Unknown", "NothingProven", "loopback") == (said.status, said.reason, said.blocked_rung)
    reordered = dataclasses.replace(LADDER, rungs=("loopback", "driver", "inventory"))
    assert "loopback" == decide(ledger, reordered).blocked_rung
    higher = Ladder(probes=(*LADDER.probes, info("peer.x")), rungs=(*LADDER.rungs, "peer"))
    assert "loopback" == decide(record(ledger, "peer.x", SKIP, 2), higher).blocked_rung
    still = dataclasses.replace(LADDER, rungs=("driver", "inventory"))
    assert ("NothingProven", "driver") == (
        decide(ledger, still).reason,
        decide(ledger, still).blocked_rung,
    )


def test_a_pending_probe_does_not_gate_a_verified_node() -> None:
    """An upgrade's new probe leaves the node True until its first run; on a new boot it is waited for."""
    wider = dataclasses.replace(LADDER, probes=(*LADDER.probes, info("driver.new")))
    assert "True" == decide(verified(), wider).status
    ledger = empty()
    for name in NAMES:
        ledger = record(ledger, name, PASS, 1)
    assert "Verifying" == decide(unverified(ledger), wider).reason


def test_a_new_probe_that_cannot_be_loaded_has_the_grace_of_every_unknown() -> None:
    """An upgrade that brings a broken probe does not close a whole fleet at once; ten minutes later it is said."""
    wider = dataclasses.replace(LADDER, broken=(("driver.new", "ImportError"),))
    run = ledgers.Run(
        probe="driver.new", verdict=verdict(UNKNOWN, "ProbeBroken"), started=200, ended=200
    )
    ledger = ledgers.record(verified(), run, wider, HYSTERESIS)
    assert "True" == decide(ledgers.settle(ledger, 799, LADDER, HYSTERESIS), wider).status
    said = decide(ledgers.settle(ledger, 800, LADDER, HYSTERESIS), wider)
    assert ("Unknown", "ProbeBroken", "driver") == (said.status, said.reason, said.blocked_rung)
    fresh = ledgers.record(empty(), run, wider, HYSTERESIS)
    assert "Unknown" == decide(fresh, wider).status


def unverified(ledger: Ledger) -> Ledger:
    """The same records on a node that was not verified."""
    return Ledger(boot_id=ledger.boot_id, entries=ledger.entries)


def test_the_evidence_claims_only_what_ran() -> None:
    """A rung whose probes are pending has not passed; without a probe that moves bytes no gap is left."""
    wider = Ladder(
        probes=(*LADDER.probes, info("podview.device")), rungs=(*LADDER.rungs, "podview")
    )
    assert (
        "inventory, driver, loopback passed in boot 5a0c2a0e; loopback.bandwidth: rxe0/1 pass; "
        "not run yet: podview.device; peers not asked"
    ) == decide(verified(), wider).message
    narrower = dataclasses.replace(LADDER, rungs=("driver", "inventory"))
    assert (
        "inventory, driver passed in boot 5a0c2a0e; bytes not asked for; peers not asked"
        == decide(verified(), narrower).message
    )


def test_the_evidence_is_no_run_that_does_not_count_yet() -> None:
    """One slow transfer after a good one leaves True standing, on the words of the good one."""
    ledger = record(verified(), LOOPBACK, FAIL, 200, slow=True)
    assert "loopback.bandwidth: rxe0/1 pass" in decide(ledger).message


def test_a_long_message_is_cut_and_keeps_its_end() -> None:
    """1024 characters are what the agent allows itself; the run that caused it stays readable."""
    ledger = verified()
    entry = ledger.entries[PORTS]
    long = dataclasses.replace(entry.last, outcome=FAIL, message="x" * 5000)
    run = ledgers.Run(probe=PORTS, verdict=long, started=199, ended=200)
    said = decide(ledgers.record(ledger, run, LADDER, HYSTERESIS))
    assert 1024 == len(said.message)
    assert said.message.endswith("… (run 2, 200 s after boot)")


@given(STEPS)
def test_true_is_never_said_unless_everything_stands(
    steps: list[tuple[str, Outcome, float, bool]],
) -> None:
    """Over every history: True only with a pass of what moves data and every gating probe standing, in this boot."""
    ledger, now = empty(), 0.0
    for name, outcome, pause, slow in steps:
        now += pause
        ledger = record(ledger, name, outcome, now, slow=slow)
        said = decide(ledger)
        if said.status == "True":
            assert all(ledger.stands(one) for one in NAMES)
            assert PASS is ledger.standing(LOOPBACK)
            assert said.verified
        assert bool(said.blocked_rung) == (said.status != "True")
        assert len(said.message) <= 1024
