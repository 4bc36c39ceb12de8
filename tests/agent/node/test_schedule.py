"""Probes run when they should: at once, again and again, soon after trouble, and never over a port that is down."""

import dataclasses

from agent.node.ledger import Ledger
from agent.node.schedule import Schedule
from probes.contract import Verdict
from tests.agent.node.rungs import (
    FAIL,
    LADDER,
    NAMES,
    PASS,
    UNKNOWN,
    empty,
    info,
    record,
    verdict,
    verified,
)  # fmt: skip

DEVICES, PORTS, LOOPBACK = NAMES
NONE: frozenset[str] = frozenset()


def schedule() -> Schedule:
    """A new one."""
    return Schedule(LADDER, "node-a", 10.0)


def test_at_start_passive_probes_are_due_and_data_waits_for_them() -> None:
    """Lowest rung first; the loopback only after the rungs below it stand."""
    one = schedule()
    assert (DEVICES, PORTS) == one.due(0, empty(), NONE)
    ledger = record(record(empty(), DEVICES, PASS, 1), PORTS, PASS, 1)
    for name in (DEVICES, PORTS):
        one.finished(name, verdict(PASS), 1, ledger)
    assert (LOOPBACK,) == one.due(2, ledger, NONE)


def test_what_runs_is_not_started_again() -> None:
    """A probe that is running or stuck is not due."""
    assert (PORTS,) == schedule().due(0, empty(), frozenset({DEVICES}))


def test_a_healthy_probe_keeps_its_period_with_a_fixed_jitter() -> None:
    """Within a tenth of its period, the same each time for a node, another for another node."""
    pauses = []
    for node in ("node-a", "node-b"):
        one = Schedule(LADDER, node, 10.0)
        one.finished(PORTS, verdict(PASS), 100, verified())
        pauses.append(one.next_at[PORTS] - 100)
        assert 27 <= pauses[-1] <= 33
    assert pauses[0] != pauses[1]


def test_trouble_is_looked_at_again_soon() -> None:
    """A failed look comes back in ten seconds, a failed transfer in a minute, a blind one in a minute at most."""
    one = schedule()
    failing = record(verified(), PORTS, FAIL, 200)
    one.finished(PORTS, verdict(FAIL), 200, failing)
    assert 210 == one.next_at[PORTS]
    one.finished(LOOPBACK, verdict(FAIL), 200, record(verified(), LOOPBACK, FAIL, 200))
    assert 260 == one.next_at[LOOPBACK]
    one.finished(LOOPBACK, verdict(UNKNOWN), 200, verified())
    assert 260 == one.next_at[LOOPBACK]


def test_passes_on_the_way_back_come_at_their_spacing() -> None:
    """While a failure stands, a passing probe runs again after the spacing and not after its period."""
    one = schedule()
    ledger = record(record(verified(), LOOPBACK, FAIL, 200), LOOPBACK, PASS, 260)
    one.finished(LOOPBACK, verdict(PASS), 260, ledger)
    assert 270 == one.next_at[LOOPBACK]


def test_a_changed_port_is_looked_at_now() -> None:
    """What looks at links at once, what looks at devices soon, and nothing that moves bytes."""
    one = schedule()
    ledger = verified()
    for name in NAMES:
        one.finished(name, verdict(PASS), 100, ledger)
    assert () == one.due(101, ledger, NONE)
    one.changed(101, ledger)
    assert (PORTS,) == one.due(101, ledger, NONE)
    # A device may have gone with the port; that is looked for every ten seconds at most.
    assert (DEVICES, PORTS) == one.due(110, ledger, NONE)


def test_a_change_never_puts_a_look_off() -> None:
    """A probe that is due sooner than the pause of its rung stays so."""
    quick = dataclasses.replace(LADDER, probes=(info(DEVICES, every=5), *LADDER.probes[1:]))
    one = Schedule(quick, "node-a", 10.0)
    one.finished(DEVICES, verdict(PASS), 100, verified())
    one.changed(101, verified())
    assert DEVICES in one.due(106, verified(), NONE)


def test_no_bytes_are_sent_over_a_port_that_fails_or_was_just_seen_failing() -> None:
    """Neither while the failure stands nor while a slow one is weighed."""
    one = schedule()
    for ledger in (
        record(verified(), PORTS, FAIL, 200),
        record(verified(), PORTS, FAIL, 200, slow=True),
    ):
        assert LOOPBACK not in one.due(99999, ledger, NONE)


def test_what_was_put_in_doubt_runs_as_soon_as_its_ground_stands() -> None:
    """After the port came back the loopback is due at once, and only once."""
    one = schedule()
    ledger = verified()
    one.finished(LOOPBACK, verdict(PASS), 100, ledger)
    ledger = record(ledger, PORTS, FAIL, 200)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    assert LOOPBACK in one.due(233, ledger, NONE)
    ledger = record(ledger, LOOPBACK, PASS, 240)
    one.finished(LOOPBACK, verdict(PASS), 240, ledger)
    assert LOOPBACK not in one.due(241, ledger, NONE)


def test_a_transfer_that_a_fault_fell_into_is_repeated_at_once() -> None:
    """It began before the port failed and ended after it was back: it proves nothing, whatever its period is."""
    one = schedule()
    ledger = record(verified(), PORTS, FAIL, 200)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    ledger = record(ledger, LOOPBACK, PASS, 240, started=199)
    one.finished(LOOPBACK, verdict(PASS), 240, ledger)
    assert LOOPBACK in one.due(241, ledger, NONE)


def test_what_is_in_doubt_and_could_not_be_judged_is_tried_again_in_a_minute() -> None:
    """Not at once, for ever: each try holds the port."""
    one = schedule()
    ledger = record(verified(), PORTS, FAIL, 200)
    for at in (210, 221, 232):
        ledger = record(ledger, PORTS, PASS, at)
    ledger = record(ledger, LOOPBACK, UNKNOWN, 240)
    one.finished(LOOPBACK, verdict(UNKNOWN), 240, ledger)
    assert LOOPBACK not in one.due(299, ledger, NONE)
    assert LOOPBACK in one.due(300, ledger, NONE)


def test_only_one_probe_moves_data_at_a_time() -> None:
    """Two of them would measure each other."""
    wider = dataclasses.replace(
        LADDER, probes=(*LADDER.probes, info("loopback.other", moves_data=True))
    )
    one = Schedule(wider, "node-a", 10.0)
    ledger = Ledger(boot_id="b", verified=True, entries=verified().entries)
    assert [LOOPBACK] == [n for n in one.due(999999, ledger, NONE) if n.startswith("loopback")]
    assert () == tuple(
        n
        for n in one.due(999999, ledger, frozenset({"loopback.other"}))
        if n.startswith("loopback")
    )


def test_a_measurement_that_was_put_off_comes_back_in_ten_minutes() -> None:
    """A busy port is asked again long before the regular six hours."""
    one = schedule()
    part = dataclasses.replace(verdict(PASS), notes={"bandwidth": "deferred"})
    put_off: Verdict = dataclasses.replace(verdict(PASS), parts=(part,))
    one.finished(LOOPBACK, put_off, 100, verified())
    assert 700 == one.next_at[LOOPBACK]


def test_after_a_restart_in_the_same_boot_no_bytes_are_moved_anew() -> None:
    """Passive probes look at once; what moved data keeps its time."""
    one = schedule()
    ledger = verified(100)
    one.resume(ledger)
    assert (DEVICES, PORTS) == one.due(101, ledger, NONE)
