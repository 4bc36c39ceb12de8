"""What stands after any history: nothing is believed twice, nothing bad waits, nothing good comes cheap."""

import dataclasses

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.node import ledger as ledgers
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger, Run
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

PORTS, LOOPBACK, DEVICES = "driver.ports", "loopback.bandwidth", "inventory.devices"


def test_a_first_verification_waits_for_nothing() -> None:
    """Before the node was verified every verdict stands at once, slow ones and unknown ones too."""
    ledger = record(empty(), PORTS, FAIL, 1, slow=True)
    assert FAIL is ledger.standing(PORTS)
    ledger = record(ledger, PORTS, UNKNOWN, 2)
    assert UNKNOWN is ledger.standing(PORTS)
    ledger = record(ledger, PORTS, PASS, 3)
    assert PASS is ledger.standing(PORTS)
    assert not ledger.verified


def test_verified_means_that_all_stand_at_once() -> None:
    """The last gating probe's pass verifies the node; a failing one before it does not."""
    ledger = record(record(empty(), DEVICES, PASS, 1), PORTS, FAIL, 2)
    ledger = record(ledger, LOOPBACK, PASS, 3)
    assert not ledger.verified
    ledger = record(ledger, PORTS, PASS, 4)
    assert not ledger.stands(
        LOOPBACK
    )  # it ran while the port was failing: nothing it proved counts
    ledger = record(ledger, LOOPBACK, PASS, 9)
    assert ledger.verified


def test_a_mechanical_failure_acts_at_once() -> None:
    """One look at a port that is down is enough."""
    assert FAIL is record(verified(), PORTS, FAIL, 200).standing(PORTS)


def test_a_slow_run_acts_when_it_is_seen_twice_in_the_window() -> None:
    """One slow run changes nothing, the second within five minutes does; later, after a good one, it does not."""
    once = record(verified(), LOOPBACK, FAIL, 200, slow=True)
    assert PASS is once.standing(LOOPBACK)
    assert FAIL is record(once, LOOPBACK, FAIL, 499, slow=True).standing(LOOPBACK)
    between = record(once, LOOPBACK, PASS, 260)
    assert PASS is record(between, LOOPBACK, FAIL, 501, slow=True).standing(LOOPBACK)


def test_passes_between_do_not_hide_flapping() -> None:
    """Slow, fine, slow within the window is two slow runs."""
    ledger = record(verified(), LOOPBACK, FAIL, 200, slow=True)
    ledger = record(ledger, LOOPBACK, PASS, 250)
    assert FAIL is record(ledger, LOOPBACK, FAIL, 300, slow=True).standing(LOOPBACK)


def test_recovery_takes_three_passes_ten_seconds_apart() -> None:
    """Passes closer together count once; a failure between starts again; Unknown neither counts nor resets."""
    ledger = record(verified(), PORTS, FAIL, 200)
    for at in (201, 203, 205, 211.5):
        ledger = record(ledger, PORTS, PASS, at)
    assert FAIL is ledger.standing(PORTS)
    ledger = record(ledger, PORTS, UNKNOWN, 212)
    assert PASS is record(ledger, PORTS, PASS, 222).standing(PORTS)
    ledger = record(ledger, PORTS, FAIL, 213)
    for at in (222, 233):
        ledger = record(ledger, PORTS, PASS, at)
    assert FAIL is ledger.standing(PORTS)
    assert SKIP is record(ledger, PORTS, SKIP, 244).standing(PORTS)


def test_unknown_waits_for_its_grace_and_then_holds() -> None:
    """Ten minutes of not knowing change nothing, the eleventh does, with no new run needed; one pass brings it back."""
    ledger = record(verified(), PORTS, UNKNOWN, 200)
    ledger = record(ledger, PORTS, UNKNOWN, 700)
    assert PASS is ledgers.settle(ledger, 799, LADDER, HYSTERESIS).standing(PORTS)
    ledger = ledgers.settle(ledger, 800, LADDER, HYSTERESIS)
    assert UNKNOWN is ledger.standing(PORTS)
    assert PASS is record(ledger, PORTS, PASS, 801).standing(PORTS)


def test_a_pass_ends_the_count_of_unknown() -> None:
    """Unknown that was interrupted by a pass starts its grace anew."""
    ledger = record(verified(), PORTS, UNKNOWN, 200)
    ledger = record(ledger, PORTS, PASS, 500)
    ledger = record(ledger, PORTS, UNKNOWN, 700)
    assert PASS is ledgers.settle(ledger, 1000, LADDER, HYSTERESIS).standing(PORTS)


def test_unknown_does_not_lift_a_failure() -> None:
    """What failed and then can't be seen still fails, for ever."""
    ledger = record(verified(), PORTS, FAIL, 200)
    ledger = record(ledger, PORTS, UNKNOWN, 201)
    assert FAIL is ledgers.settle(ledger, 9999, LADDER, HYSTERESIS).standing(PORTS)


def test_a_lower_failure_puts_in_doubt_what_moved_over_it() -> None:
    """After a port was down the loopback must run again, and a run that began before does not count."""
    ledger = record(verified(), PORTS, FAIL, 200)
    assert not ledger.stands(LOOPBACK)
    ledger = record(ledger, LOOPBACK, PASS, 201, started=199)
    assert not ledger.stands(LOOPBACK)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    # A run that began before the port failed and ended after it came back proves nothing either.
    ledger = record(ledger, LOOPBACK, PASS, 233, started=199)
    assert not ledger.stands(LOOPBACK)
    ledger = record(ledger, LOOPBACK, PASS, 240, started=235)
    assert ledger.stands(LOOPBACK)


def back(ledger: Ledger) -> Ledger:
    """After the port failed at 200 and came back by 232."""
    ledger = record(ledger, PORTS, FAIL, 200)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    return ledger


def test_only_a_run_that_proves_something_lifts_the_doubt() -> None:
    """After a port was down, a transfer that could not be judged or was slow leaves the node unproven."""
    ledger = back(verified())
    for outcome, slow in ((UNKNOWN, False), (FAIL, True)):
        tried = record(ledger, LOOPBACK, outcome, 240, slow=slow)
        assert PASS is tried.standing(LOOPBACK)
        assert not tried.stands(LOOPBACK)
        assert not ledgers.proven(tried, LADDER)
        assert record(tried, LOOPBACK, PASS, 300).stands(LOOPBACK)


def test_a_first_transfer_over_a_port_that_was_away_meanwhile_does_not_count() -> None:
    """It began before the port failed and ended after it was back."""
    ledger = record(record(empty(), DEVICES, PASS, 1), PORTS, PASS, 1)
    ledger = record(record(ledger, PORTS, FAIL, 3), PORTS, PASS, 4)
    ledger = record(ledger, LOOPBACK, PASS, 5, started=2)
    assert not ledger.verified
    assert record(ledger, LOOPBACK, PASS, 9).verified


def test_looking_is_believed_whatever_is_below() -> None:
    """Only what moved bytes over a lower rung is in doubt when that rung fails; what a look saw is so."""
    ledger = record(verified(), DEVICES, FAIL, 200)
    ledger = record(ledger, PORTS, PASS, 201)
    assert ledger.stands(PORTS)


def test_a_rung_that_does_not_gate_puts_nothing_in_doubt() -> None:
    """Otherwise it would gate through the rungs above it."""
    narrower = dataclasses.replace(LADDER, rungs=("driver", "loopback"))
    run = ledgers.Run(probe=DEVICES, verdict=verdict(FAIL), started=199, ended=200)
    ledger = ledgers.record(verified(), run, narrower, HYSTERESIS)
    assert FAIL is ledger.standing(DEVICES)
    assert ledgers.proven(ledger, narrower)


def test_nothing_but_skips_proves_nothing() -> None:
    """A node where no probe that moves data passed is not verified."""
    ledger = empty()
    for name in NAMES:
        ledger = record(ledger, name, SKIP if name == LOOPBACK else PASS, 1)
    assert not ledgers.proven(ledger, LADDER)
    assert not ledger.verified


def test_a_new_probe_is_pending_on_a_verified_node() -> None:
    """What an upgrade brings stands for nothing until it ran; its first mechanical failure then acts."""
    wider = dataclasses.replace(LADDER, probes=(*LADDER.probes, info("driver.new")))
    ledger = verified()
    assert None is ledger.standing("driver.new")
    unknown = record(ledger, "driver.new", UNKNOWN, 200)
    assert None is unknown.standing("driver.new")
    failing = record(ledger, "driver.new", FAIL, 200)
    assert FAIL is failing.standing("driver.new")
    assert not ledgers.proven(failing, wider)


def test_the_cause_is_the_run_that_changed_the_standing() -> None:
    """Later failures for the same reason do not replace it; another reason does."""
    ledger = record(verified(), PORTS, FAIL, 200, reason="PortDown")
    ledger = record(ledger, PORTS, FAIL, 210, reason="PortDown")
    assert (200, 2) == (ledger.entries[PORTS].cause_at, ledger.entries[PORTS].cause_run)
    ledger = record(ledger, PORTS, FAIL, 220, reason="NoSubnetManager")
    assert 220 == ledger.entries[PORTS].cause_at


def test_parts_that_passed_are_remembered_for_the_boot() -> None:
    """Also when later verdicts no longer have them: that is how a lost device is known."""
    parts = tuple(dataclasses.replace(verdict(PASS), part=name) for name in ("b", "a"))
    whole = dataclasses.replace(verdict(PASS), parts=parts)
    run = ledgers.Run(probe=DEVICES, verdict=whole, started=1, ended=2)
    ledger = ledgers.record(verified(), run, LADDER, HYSTERESIS)
    assert ("a", "b") == ledger.entries[DEVICES].seen
    ledger = record(ledger, DEVICES, FAIL, 3)
    assert ("a", "b") == ledger.entries[DEVICES].seen


def test_a_ledger_survives_being_written_and_read() -> None:
    """JSON and back is the same ledger."""
    ledger = record(verified(), LOOPBACK, FAIL, 200, slow=True)
    assert ledger == msgspec.json.decode(msgspec.json.encode(ledger), type=ledgers.Ledger)


def test_records_of_probes_that_are_gone_are_dropped() -> None:
    """A probe that this version does not have can't hold the node back for ever."""
    narrower = Ladder(probes=LADDER.probes[:2], rungs=("inventory", "driver"))
    assert {DEVICES, PORTS} == set(ledgers.restrict(verified(), narrower).entries)


def test_what_is_proven_anew_needs_every_probe_and_still_misses_what_is_gone() -> None:
    """For another Node object nothing stands, yet the machine's parts are remembered; one pass of each proves again."""
    port = Verdict(outcome=PASS, reason="R", message="m", part="mlx5_0/1")
    whole = Verdict(outcome=PASS, reason="R", message="m", parts=(port,))
    run = Run(probe=PORTS, verdict=whole, started=110, ended=111)
    seen = ledgers.record(verified(), run, LADDER, HYSTERESIS)
    ledger = ledgers.unproven(record(seen, DEVICES, FAIL, 120))
    assert not ledger.verified
    assert all(ledger.standing(name) is None for name in NAMES)
    assert ("mlx5_0/1",) == ledger.entries[PORTS].seen
    for name in NAMES:
        assert not ledgers.proven(ledger, LADDER)
        ledger = record(ledger, name, PASS, 130)
    assert ledger.verified


STEPS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(list(Outcome)),
        st.floats(min_value=0, max_value=400),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_a_failure_never_stands_as_proof(
    steps: list[tuple[str, Outcome, float, bool]],
) -> None:
    """A node is proven only while each gating probe's last mechanical failure was followed by a pass, and after the
    last such failure below it a transfer began and passed.
    """
    ledger, now = empty(), 0.0
    failed: set[str] = set()
    fault_at, proof_began = -1.0, -1.0
    for name, outcome, pause, slow in steps:
        now += pause
        ledger = record(ledger, name, outcome, now, slow=slow)
        if outcome is FAIL and not slow:
            failed.add(name)
            fault_at = fault_at if name == LOOPBACK else now
        elif outcome in {PASS, SKIP}:
            failed.discard(name)
            proof_began = now - 0.5 if name == LOOPBACK else proof_began
        if ledgers.proven(ledger, LADDER):
            assert not failed
            assert proof_began >= fault_at
            assert all(ledger.stands(name) for name in NAMES)


# --- What is not measured, and what is not seen, proves nothing ---


def deferred(ledger: Ledger, at: float) -> Ledger:
    """A run of the loopback that moved bytes and was not measured."""
    part = Verdict(
        outcome=PASS,
        reason="LoopbackPassed",
        message="m",
        part="rxe0/1",
        notes={"bandwidth": "deferred"},
    )
    whole = Verdict(outcome=PASS, reason="LoopbackPassed", message="m", parts=(part,))
    run = Run(probe=LOOPBACK, verdict=whole, started=at - 1, ended=at)
    return ledgers.record(ledger, run, LADDER, HYSTERESIS)


def test_a_slow_port_is_not_cured_by_a_run_that_measured_nothing() -> None:
    """Neither before the first verification nor after it: an idle queue pair of somebody's opens no node."""
    first = record(record(empty(), DEVICES, PASS, 1), PORTS, PASS, 1)
    first = deferred(record(first, LOOPBACK, FAIL, 10, slow=True), 70)
    assert FAIL is first.standing(LOOPBACK)
    assert not first.verified
    assert record(first, LOOPBACK, PASS, 200).verified
    later = record(
        record(verified(), LOOPBACK, FAIL, 200, slow=True), LOOPBACK, FAIL, 260, slow=True
    )
    for at in (300, 320, 340, 360):
        later = deferred(later, at)
    assert FAIL is later.standing(LOOPBACK)


def test_slow_runs_count_however_far_apart_when_nothing_between_them_was_measured() -> None:
    """Slow, in use, slow, in use: two measurements, both slow."""
    ledger = record(verified(), LOOPBACK, FAIL, 1000, slow=True)
    ledger = deferred(ledger, 1600)
    assert PASS is ledger.standing(LOOPBACK)
    assert FAIL is record(ledger, LOOPBACK, FAIL, 2200, slow=True).standing(LOOPBACK)
    good = record(record(verified(), LOOPBACK, FAIL, 1000, slow=True), LOOPBACK, PASS, 1600)
    assert PASS is record(good, LOOPBACK, FAIL, 2200, slow=True).standing(LOOPBACK)


def test_first_word_of_a_probe_that_was_added_counts_at_once() -> None:
    """A rung that the settings added to a verified node has no good record to lean on."""
    narrow = dataclasses.replace(LADDER, probes=LADDER.probes[:2], rungs=("inventory", "driver"))
    ledger = empty()
    for name in (DEVICES, PORTS):
        run = Run(probe=name, verdict=verdict(PASS), started=0, ended=1)
        ledger = ledgers.record(ledger, run, narrow, HYSTERESIS)
    assert ledger.verified
    assert FAIL is record(ledger, LOOPBACK, FAIL, 100, slow=True).standing(LOOPBACK)
    assert (
        ledgers.record(
            ledger,
            Run(probe=LOOPBACK, verdict=verdict(UNKNOWN), started=99, ended=100),
            LADDER,
            HYSTERESIS,
        ).standing(LOOPBACK)
        is None
    )


def test_what_went_over_a_rung_that_was_unseen_is_proven_again() -> None:
    """Ports that nobody could look at for too long may be other ports now."""
    ledger = record(verified(), PORTS, UNKNOWN, 200)
    assert ledger.stands(LOOPBACK)
    ledger = ledgers.settle(ledger, 900, LADDER, HYSTERESIS)
    assert UNKNOWN is ledger.standing(PORTS)
    ledger = record(ledger, PORTS, PASS, 1000)
    assert not ledger.stands(LOOPBACK)
    assert record(ledger, LOOPBACK, PASS, 1010, started=1001).stands(LOOPBACK)
