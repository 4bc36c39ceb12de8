"""What this node has proven in this boot: for each probe the outcome that stands, and how it came
to stand.

Pure: every function takes the ledger and `now` (seconds since boot) and gives a new ledger. A first
verification waits for nothing. Once the node was verified, one slow run or one unanswered question
changes nothing yet, and what failed has to pass several times; a mechanical failure acts at once.
"""

import dataclasses
from collections.abc import Mapping

import msgspec

from agent.node.ladder import Ladder
from agent.settings import HysteresisSettings
from probes.contract import Kind, Outcome, Verdict

_GOOD = {Outcome.PASS, Outcome.SKIP}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One probe's record.

    `standing` is None while the probe is pending: never run, on a node that other probes had
    verified. `cause` is the verdict that `standing` rests on, given by run number `cause_run` at
    `cause_at`; `last` is the newest verdict. Times are seconds since boot.
    """

    standing: Outcome | None
    cause: Verdict
    cause_at: float
    cause_run: int
    last: Verdict
    last_at: float
    runs: int
    slow_at: tuple[float, ...] = ()
    """When performance failures were measured: inside the window, or with no good measurement since."""
    measured_well: bool = False
    """Whether a measurement was good since the last of them."""
    passes: int = 0
    """Passes towards recovery from FAIL that were far enough apart."""
    counted_at: float = 0.0
    """When the last of them was."""
    unknown_since: float | None = None
    seen: tuple[str, ...] = ()
    """Parts that passed in this boot: what is gone later was lost, whatever a profile expects."""
    stale_since: float | None = None
    """Since when a lower rung's failure has put in doubt what this probe proved."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one boot. `verified`: every gating probe has stood at once since the boot."""

    boot_id: str
    verified: bool = False
    entries: dict[str, Entry] = {}

    def standing(self, name: str) -> Outcome | None:
        """What stands for a probe, None where nothing does yet."""
        entry = self.entries.get(name)
        return entry.standing if entry else None

    def stands(self, name: str) -> bool:
        """Whether a probe passed or had nothing to check, and nothing has put that in doubt."""
        entry = self.entries.get(name)
        return entry is not None and entry.standing in _GOOD and entry.stale_since is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run of a probe: when it started and ended (seconds since boot), and what it found."""

    probe: str
    verdict: Verdict
    started: float
    ended: float


def record(ledger: Ledger, run: Run, ladder: Ladder, hysteresis: HysteresisSettings) -> Ledger:
    """The ledger after a run."""
    before = ledger.entries.get(run.probe)
    entry = _first(run) if before is None else _next(before, run)
    entry = _weigh(entry, before, run, hysteresis, verified=ledger.verified)
    entry = msgspec.structs.replace(
        entry,
        seen=_seen(entry.seen, run.verdict),
        stale_since=_stale_since(ledger, run, ladder),
    )
    entries = {**ledger.entries, run.probe: entry}
    entries = _doubt(entries, before, run.probe, ladder, run.ended)
    return _verify(msgspec.structs.replace(ledger, entries=entries), ladder)


def settle(ledger: Ledger, now: float, ladder: Ladder, hysteresis: HysteresisSettings) -> Ledger:
    """The ledger as time alone changes it: what has been Unknown for too long is."""
    entries = dict(ledger.entries)
    for name, entry in ledger.entries.items():
        if _unknown_too_long(entry, now, hysteresis):
            entries[name] = _stand(entries[name], Outcome.UNKNOWN, entry.last, now)
            entries = _doubt(entries, entry, name, ladder, now)
    return msgspec.structs.replace(ledger, entries=entries)


def restrict(ledger: Ledger, ladder: Ladder) -> Ledger:
    """Without the records of probes that this version or these settings no longer have."""
    known = {one.name for one in ladder.probes} | {name for name, _ in ladder.broken}
    kept = {name: entry for name, entry in ledger.entries.items() if name in known}
    return msgspec.structs.replace(ledger, entries=kept)


def unproven(ledger: Ledger) -> Ledger:
    """The same boot, with nothing proven.

    What was seen of the machine stays, so that what is gone from it is still missed.
    """
    entries = {
        name: msgspec.structs.replace(_reset(entry), standing=None, stale_since=None)
        for name, entry in ledger.entries.items()
    }
    return Ledger(boot_id=ledger.boot_id, entries=entries)


def _verify(ledger: Ledger, ladder: Ladder) -> Ledger:
    if ledger.verified or not proven(ledger, ladder):
        return ledger
    return msgspec.structs.replace(ledger, verified=True)


def proven(ledger: Ledger, ladder: Ladder) -> bool:
    """Whether every gating probe stands, and something was proven: bytes moved, where a gating probe moves any."""
    if not ladder.gating or not all(ledger.stands(name) for name in ladder.gating):
        return False
    movers = [name for name in ladder.movers if name in ladder.gating]
    return any(ledger.standing(name) is Outcome.PASS for name in movers or ladder.gating)


def _first(run: Run) -> Entry:
    return Entry(
        standing=None,
        cause=run.verdict,
        cause_at=run.ended,
        cause_run=1,
        last=run.verdict,
        last_at=run.ended,
        runs=1,
    )


def _next(before: Entry, run: Run) -> Entry:
    return msgspec.structs.replace(
        before, last=run.verdict, last_at=run.ended, runs=before.runs + 1
    )


def _weigh(
    entry: Entry, before: Entry | None, run: Run, hysteresis: HysteresisSettings, *, verified: bool
) -> Entry:
    """The entry with what stands after this run."""
    verdict, now = run.verdict, run.ended
    if _spares_the_slow(entry, verdict):
        # What was measured to be slow is not cured by not being measured.
        return entry
    pending = before is None or before.standing is None
    if not verified or (pending and verdict.outcome is not Outcome.UNKNOWN):
        return _stand(_reset(entry), verdict.outcome, verdict, now)
    if verdict.outcome is Outcome.UNKNOWN:
        since = now if before is None or before.unknown_since is None else before.unknown_since
        entry = msgspec.structs.replace(entry, unknown_since=since)
        late = _unknown_too_long(entry, now, hysteresis)
        return _stand(entry, Outcome.UNKNOWN, verdict, now) if late else entry
    entry = msgspec.structs.replace(entry, unknown_since=None)
    if verdict.outcome is Outcome.FAIL:
        return _weigh_failure(entry, verdict, now, hysteresis)
    return _weigh_pass(entry, verdict, now, hysteresis)


def _weigh_failure(
    entry: Entry, verdict: Verdict, now: float, hysteresis: HysteresisSettings
) -> Entry:
    entry = msgspec.structs.replace(entry, passes=0)
    if verdict.kind is Kind.MECHANICS:
        return _stand(entry, Outcome.FAIL, verdict, now)
    # Only a good measurement makes an old one old: on a port that is mostly in use they are far apart.
    oldest = now - hysteresis.failure_window_seconds if entry.measured_well else 0.0
    slow_at = (*(at for at in entry.slow_at if at >= oldest), now)[-hysteresis.failures :]
    entry = msgspec.structs.replace(entry, slow_at=slow_at, measured_well=False)
    enough = len(slow_at) >= hysteresis.failures
    return _stand(entry, Outcome.FAIL, verdict, now) if enough else entry


def _weigh_pass(
    entry: Entry, verdict: Verdict, now: float, hysteresis: HysteresisSettings
) -> Entry:
    if not is_deferred(verdict):
        entry = msgspec.structs.replace(entry, measured_well=True)
    if entry.standing is not Outcome.FAIL:
        return _stand(entry, verdict.outcome, verdict, now)
    if entry.passes and now - entry.counted_at < hysteresis.recovery_spacing_seconds:
        return entry
    entry = msgspec.structs.replace(entry, passes=entry.passes + 1, counted_at=now)
    if entry.passes < hysteresis.recovery_passes:
        return entry
    return _stand(_reset(entry), verdict.outcome, verdict, now)


def is_deferred(verdict: Verdict) -> bool:
    """Whether a measurement was put off, since a port was in use."""
    return any(part.notes.get("bandwidth") == "deferred" for part in verdict.parts)


def _spares_the_slow(entry: Entry, verdict: Verdict) -> bool:
    slow = entry.standing is Outcome.FAIL and entry.cause.kind is Kind.PERFORMANCE
    return slow and verdict.outcome in _GOOD and is_deferred(verdict)


def _stand(entry: Entry, outcome: Outcome, verdict: Verdict, now: float) -> Entry:
    """With `outcome` standing; its cause stays the first run that said so of the same parts."""
    if entry.standing is outcome and _said(entry.cause, outcome) == _said(verdict, outcome):
        return entry
    return msgspec.structs.replace(
        entry, standing=outcome, cause=verdict, cause_at=now, cause_run=entry.runs
    )


def _said(verdict: Verdict, outcome: Outcome) -> tuple[str, frozenset[str]]:
    """The reason, and the parts that it is about where something is wrong."""
    return verdict.reason, frozenset() if outcome in _GOOD else blamed(verdict)


def blamed(verdict: Verdict) -> frozenset[str]:
    """The parts that are as bad as the whole."""
    return frozenset(one.part for one in verdict.parts if one.outcome is verdict.outcome)


def _stale_since(ledger: Ledger, run: Run, ladder: Ladder) -> float | None:
    """Since when what this run's probe proved is in doubt, now that it ran; None when it is not."""
    if run.probe not in ladder.movers:
        return None
    entry = ledger.entries.get(run.probe)
    below = ladder.below(run.probe)
    if not all(ledger.stands(name) for name in below):
        return run.ended
    if entry is None:
        # Nobody could put it in doubt yet: a rung that came back during the run had been away in it.
        back = any(_came_back(ledger.entries[name], run) for name in below)
        return run.ended if back else None
    if entry.stale_since is None:
        return None
    if run.started <= entry.stale_since:
        return run.ended
    # A run that did not prove anything lifts no doubt. Its time stays, so that it is tried again at its pace.
    return None if run.verdict.outcome in _GOOD else entry.stale_since


def _came_back(entry: Entry, run: Run) -> bool:
    return entry.cause_run > 1 and entry.cause_at > run.started


def _seen(before: tuple[str, ...], verdict: Verdict) -> tuple[str, ...]:
    passed = {part.part for part in verdict.parts if part.part and part.outcome is Outcome.PASS}
    return tuple(sorted(passed | set(before)))


def _reset(entry: Entry) -> Entry:
    return msgspec.structs.replace(
        entry, slow_at=(), measured_well=False, passes=0, counted_at=0.0, unknown_since=None
    )


def _unknown_too_long(entry: Entry, now: float, hysteresis: HysteresisSettings) -> bool:
    if entry.unknown_since is None or entry.standing in {Outcome.FAIL, Outcome.UNKNOWN}:
        return False
    return now - entry.unknown_since >= hysteresis.unknown_grace_seconds


def _doubt(
    entries: Mapping[str, Entry], before: Entry | None, name: str, ladder: Ladder, now: float
) -> dict[str, Entry]:
    """With what went over a rung put in doubt, where that rung came to stand as failed or unseen.

    A rung that does not gate does not reach the condition through those above it either.
    """
    bad = {Outcome.FAIL, Outcome.UNKNOWN}
    was_bad = before is not None and before.standing in bad
    if entries[name].standing not in bad or was_bad or name not in ladder.gating:
        return dict(entries)
    return _put_in_doubt(entries, ladder.movers_above(name), now)


def _put_in_doubt(
    entries: Mapping[str, Entry], names: tuple[str, ...], now: float
) -> dict[str, Entry]:
    return {
        name: msgspec.structs.replace(entry, stale_since=now) if name in names else entry
        for name, entry in entries.items()
    }
