"""Verdicts over parts, hosts, limits and the order of rungs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import contract
from probes.contract import Kind, Outcome, Verdict

_FAIL, _PASS, _SKIP, _UNKNOWN = Outcome.FAIL, Outcome.PASS, Outcome.SKIP, Outcome.UNKNOWN


def part(
    outcome: Outcome, name: str = "", kind: Kind = Kind.MECHANICS, warning: str = ""
) -> Verdict:
    """A verdict on one part, with reason and message that name it."""
    return Verdict(
        outcome=outcome,
        reason=f"Reason{name}",
        message=f"message {name}",
        part=name,
        kind=kind,
        warning=warning,
        values={"bytes": 1.0},
        notes={"witness": "partial"},
    )  # fmt: skip


def together(*parts: Verdict) -> Verdict:
    """The parts' verdict with the usual words."""
    return contract.together(parts, passed="AllGood", message="all good", absent="none here")


@pytest.mark.parametrize(
    ("parts", "outcome", "reason", "message"),
    [
        ((), _SKIP, "NothingToCheck", "none here"),
        ((part(_PASS, "A"), part(_PASS, "B")), _PASS, "AllGood", "all good"),
        ((part(_PASS, "A"), part(_SKIP, "B")), _PASS, "AllGood", "all good"),
        ((part(_SKIP, "A"), part(_SKIP, "B")), _SKIP, "ReasonA", "message A (and 1 more like it)"),
        ((part(_PASS, "A"), part(_UNKNOWN, "B")), _UNKNOWN, "ReasonB", "message B"),
        ((part(_UNKNOWN, "A"), part(_FAIL, "B"), part(_PASS, "C")), _FAIL, "ReasonB", "message B"),
        ((part(_FAIL, "A"), part(_FAIL, "B"), part(_FAIL, "C")), _FAIL, "ReasonA", "message A (and 2 more like it)"),
        ((part(_FAIL, "A", Kind.PERFORMANCE), part(_FAIL, "B")), _FAIL, "ReasonB", "message B (and 1 more like it)"),
        ((part(_FAIL, "A", Kind.PERFORMANCE), part(_UNKNOWN, "B")), _FAIL, "ReasonA", "message A"),
    ],
)  # fmt: skip
def test_the_worst_part_speaks(
    parts: tuple[Verdict, ...], outcome: Outcome, reason: str, message: str
) -> None:
    """What was seen to fail outranks what was not seen, and a fault that acts at once outranks a slow one."""
    verdict = together(*parts)
    assert (outcome, reason, message) == (verdict.outcome, verdict.reason, verdict.message)
    assert parts == verdict.parts


def test_a_whole_carries_no_numbers_of_one_part() -> None:
    """The first bad port's bandwidth is not the machine's."""
    verdict = together(part(_PASS, "A"), part(_FAIL, "B"))
    assert ("", {}, {}) == (verdict.part, verdict.values, verdict.notes)


def test_the_kind_of_the_lead_is_the_wholes() -> None:
    """A machine that is only slow waits for a second look; one that also lost a port does not."""
    slow, down = part(_FAIL, "A", Kind.PERFORMANCE), part(_FAIL, "B")
    assert Kind.PERFORMANCE is together(slow, slow).kind
    assert Kind.MECHANICS is together(slow, down).kind


def test_a_pass_keeps_the_first_warning() -> None:
    """One port's warning is not lost among the others' silence."""
    parts = (part(_PASS), part(_PASS, warning="Small"), part(_PASS, warning="Odd"))
    assert "Small" == together(*parts).warning
    assert "" == together(part(_PASS), part(_PASS)).warning


@given(st.lists(st.sampled_from(Outcome), min_size=1))
def test_nothing_bad_is_ever_outvoted(outcomes: list[Outcome]) -> None:
    """However many parts pass, a failing or unknown one decides; only skips make a skip."""
    found = together(*(part(outcome) for outcome in outcomes)).outcome
    bad = [outcome for outcome in (_FAIL, _UNKNOWN) if outcome in outcomes]
    if bad:
        assert bad[0] is found
    else:
        assert (_PASS if _PASS in outcomes else _SKIP) is found


def test_unreadable_says_where_and_why() -> None:
    """One line, and both halves for programs."""
    error = contract.Unreadable(Path("/sys/x"), "is empty")
    assert ("/sys/x: is empty", "/sys/x", "is empty") == (str(error), error.where, error.why)


def test_a_host_prefixes_absolute_paths() -> None:
    """The same reader reads the machine and a captured tree."""
    assert Path("/sys/class") == contract.Host().path("/sys/class")
    assert Path("/tree/sys/class") == contract.Host(root=Path("/tree")).path("/sys/class")


def test_only_the_machine_itself_is_live() -> None:
    """Libraries speak about the machine they run on, whatever files are read."""
    assert contract.Host().live
    assert not contract.Host(root=Path("/tree")).live


def test_limits_know_where_a_value_came_from() -> None:
    """What nobody set is a default."""
    limits = contract.Limits(origins={"mtu": "profile h200"})
    assert ("profile h200", "default") == (limits.origin("mtu"), limits.origin("rate"))


def test_rungs_are_climbed_in_the_ladders_order() -> None:
    """What stands beside the ladder comes after it; inside a rung the names decide."""
    names = ["storage.nfs", "loopback.bandwidth", "driver.ports", "driver.gids"]
    names += ["custom.x", "peer.x", "inventory.gpus"]
    assert [
        "inventory.gpus",
        "driver.gids",
        "driver.ports",
        "loopback.bandwidth",
        "peer.x",
        "custom.x",
        "storage.nfs",
    ] == sorted(names, key=contract.by_rung)
