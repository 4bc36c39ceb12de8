"""What the node says of itself: the ledger as one condition, the worst first, with the evidence.

Pure.
"""

import dataclasses

import msgspec

from agent.node.ladder import Ladder, rung
from agent.node.ledger import Entry, Ledger, blamed, proven
from probes.contract import MAX_MESSAGE_CHARS, Outcome, Verdict, by_rung

TYPE = "FabricReady"
VERIFIED = "FabricVerified"
VERIFYING = "Verifying"
NOTHING_PROVEN = "NothingProven"
_GOOD = {Outcome.PASS, Outcome.SKIP}


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition's status (`True`, `False`, `Unknown`), reason and message; the lowest rung that
    has not passed, empty when all have; and whether the node was verified in this boot. `about` are
    the probes and parts that something is wrong with.
    """

    status: str
    reason: str
    message: str
    blocked_rung: str
    verified: bool
    about: tuple[str, ...] = ()


def decide(ledger: Ledger, ladder: Ladder, previous: Condition | None = None) -> Condition:
    """The condition now. Its message is the previous one's while it says the same of the same parts."""
    now = _decide(ledger, ladder)
    if previous is None or _essence(previous) != _essence(now):
        return now
    if now.reason == VERIFYING:
        # Climbing the ladder is no news: a write for each rung would use up what a failure needs.
        return msgspec.structs.replace(previous, verified=now.verified)
    return msgspec.structs.replace(now, message=previous.message)


def _essence(condition: Condition) -> tuple[str, str, tuple[str, ...]]:
    return condition.status, condition.reason, condition.about


def _decide(ledger: Ledger, ladder: Ladder) -> Condition:
    failed = [name for name in ladder.gating if ledger.standing(name) is Outcome.FAIL]
    if failed:
        return _speak(ledger, "False", failed)
    # What a new version brought does not gate on a node that the other probes had verified, until it says something
    # that stands (where it can't be loaded or run: after the grace that every Unknown has).
    nothing_yet = [name for name in ladder.gating if ledger.standing(name) is None]
    waiting = [] if ledger.verified else nothing_yet
    unknown = [name for name in ladder.gating if ledger.standing(name) is Outcome.UNKNOWN]
    # A rung above one that is Unknown never runs, so the lower of the two is what to look at.
    if unknown and not (waiting and _height(waiting[0]) <= _height(unknown[0])):
        return _speak(ledger, "Unknown", unknown)
    stale = [
        name
        for name in ladder.gating
        if (entry := ledger.entries.get(name)) and entry.stale_since is not None
    ]
    if waiting or stale:
        return _verifying(ledger, waiting or stale)
    if not _proven_but_pending(ledger, ladder):
        message = "every check had nothing to check: no bytes were moved, so nothing is proven"
        return Condition(
            status="Unknown",
            reason=NOTHING_PROVEN,
            message=message,
            blocked_rung=_lowest_prover(ladder),
            verified=ledger.verified,
        )
    return Condition(
        status="True",
        reason=VERIFIED,
        message=_cut(_evidence(ledger, ladder)),
        blocked_rung="",
        verified=ledger.verified,
    )


def _proven_but_pending(ledger: Ledger, ladder: Ladder) -> bool:
    """As `proven`, over the probes that have run."""
    run = tuple(one for one in ladder.probes if ledger.standing(one.name) is not None)
    return proven(ledger, dataclasses.replace(ladder, probes=run, broken=()))


def _speak(ledger: Ledger, status: str, names: list[str]) -> Condition:
    """With the voice of the lowest of `names`."""
    first = names[0]
    entry = ledger.entries[first]
    others = f"; also: {', '.join(names[1:])}" if names[1:] else ""
    return Condition(
        status=status,
        reason=entry.cause.reason,
        message=_cut(f"{first}: {entry.cause.message}", f" ({_when(entry)}){others}"),
        blocked_rung=rung(first),
        verified=ledger.verified,
        about=(*names, *sorted(blamed(entry.cause))),
    )


def _verifying(ledger: Ledger, names: list[str]) -> Condition:
    words = "to run again" if ledger.verified else "not run yet"
    return Condition(
        status="Unknown",
        reason=VERIFYING,
        message=_cut(f"{words} in this boot: {', '.join(names)}"),
        blocked_rung=rung(names[0]),
        verified=ledger.verified,
    )


def _lowest_prover(ladder: Ladder) -> str:
    """The lowest rung that moves bytes; the highest of all where none does."""
    movers = [name for name in ladder.gating if name in ladder.movers]
    return rung(movers[0]) if movers else rung(ladder.gating[-1])


def _evidence(ledger: Ledger, ladder: Ladder) -> str:
    """What was proven: the rungs and what moved; and what was not asked."""
    pending = [name for name in ladder.gating if ledger.standing(name) is None]
    asked = {rung(name) for name in ladder.gating if name not in pending}
    passed = ", ".join(sorted(asked, key=by_rung))
    words = [f"{passed} passed in boot {ledger.boot_id[:8]}"]
    words += [
        f"{name}: {_good(ledger.entries[name]).message}"
        for name in ladder.gating
        if name in ladder.movers and name not in pending
    ]
    if pending:
        words.append(f"not run yet: {', '.join(pending)}")
    if not any(name in ladder.movers for name in ladder.gating):
        words.append("bytes not asked for")
    if "peer" not in asked:
        words.append("peers not asked")
    return "; ".join(words)


def _good(entry: Entry) -> Verdict:
    """The newest verdict, or what stands where the newest one does not count yet."""
    return entry.last if entry.last.outcome in _GOOD else entry.cause


def _height(name: str) -> int:
    return by_rung(name)[0]


def _when(entry: Entry) -> str:
    return f"run {entry.cause_run}, {entry.cause_at:.0f} s after boot"


def _cut(text: str, tail: str = "") -> str:
    """At most what a condition's message may have, the tail kept."""
    room = MAX_MESSAGE_CHARS - len(tail[:MAX_MESSAGE_CHARS])
    short = text if len(text) <= room else text[: max(0, room - 1)] + "…"
    return (short + tail)[:MAX_MESSAGE_CHARS]
