"""Each transition and each new warning is one event, about the Node object that it happened to."""

from agent.node import announce
from agent.node.announce import About
from agent.node.condition import Condition
from agent.node.ledger import Run
from probes.contract import Outcome, Verdict

ABOUT = About(node="node-a", uid="u", boot_id="b")


def verdict(warning: str = "", message: str = "m", parts: tuple[Verdict, ...] = ()) -> Verdict:
    """A pass, perhaps with a warning."""
    return Verdict(
        outcome=Outcome.PASS, reason="Good", message=message, warning=warning, parts=parts
    )


def port(name: str, warning: str, message: str = "m") -> Verdict:
    """A part with a warning."""
    return Verdict(outcome=Outcome.PASS, reason="Good", message=message, part=name, warning=warning)


def told(now: Verdict, before: Verdict | None = None) -> list[tuple[str, str]]:
    """Reason and message of each event."""
    run = Run(probe="driver.ports", verdict=now, started=1, ended=2)
    events = announce.warnings(ABOUT, run, before, "t")
    assert all(event.warning and event.uid == "u" for event in events)
    return [(event.reason, event.message) for event in events]


def test_a_transition_is_a_warning_only_where_work_is_kept_out() -> None:
    """False is a warning; True and Unknown are not. The event names the condition's reason."""
    for status, warning in (("True", False), ("False", True), ("Unknown", False)):
        said = Condition(status=status, reason="R", message="m", blocked_rung="", verified=True)
        event = announce.transition(ABOUT, said, "t")
        assert ("R", "m", warning, "u") == (event.reason, event.message, event.warning, event.uid)


def test_a_new_warning_of_a_part_is_told_once() -> None:
    """Each part's own; the whole, which repeats one of them, adds nothing."""
    both = verdict(
        "BelowRate", parts=(port("a/1", "BelowRate", "a"), port("b/1", "BelowRate", "b"))
    )
    one = verdict("BelowRate", parts=(port("a/1", "BelowRate", "a"),))
    assert [("BelowRate", "a"), ("BelowRate", "b")] == told(both)
    assert [("BelowRate", "b")] == told(both, before=one)
    assert [] == told(both, before=both)


def test_the_same_warning_in_other_words_is_not_new() -> None:
    """A rate that is measured again and again is no event each time."""
    before = verdict("BelowRate", parts=(port("a/1", "BelowRate", "93 Gb/s"),))
    now = verdict("BelowRate", parts=(port("a/1", "BelowRate", "94 Gb/s"),))
    assert [] == told(now, before=before)


def test_a_warning_of_the_whole_is_told_where_no_part_has_one() -> None:
    """A probe without parts warns too."""
    assert [("OldKernel", "5.4")] == told(verdict("OldKernel", "5.4"), before=verdict())
    assert [] == told(verdict())
