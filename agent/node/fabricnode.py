"""What this node's FabricNode says of it: rung by rung, rail by rail, and its last transitions. Pure.

Like the condition, it is written on change only: a rate that was measured again is news when it
differs by more than a twentieth.
"""

import dataclasses
from collections.abc import Iterable

import msgspec

from agent.node import ladder as ladders
from agent.node.condition import Condition
from agent.node.ladder import Ladder
from agent.node.ledger import Entry, Ledger
from probes.contract import Outcome, Verdict

_MAX_TRANSITIONS = 10
_MAX_RAILS = 64
_NEWS_SHARE = 0.05
_MAX_TEXT_CHARS = 1024
_WORST_FIRST = (Outcome.FAIL, Outcome.UNKNOWN, None, Outcome.PASS, Outcome.SKIP)
_OUTCOMES = {"True": "pass", "False": "fail", "Unknown": "unknown"}


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """The worst that stands for a rung's probes, why, and since when (RFC 3339)."""

    name: str
    outcome: str
    reason: str = ""
    message: str = ""
    since: str


class Rail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a port's last measurement gave, what it should give and who says so."""

    device: str
    port: int
    measured_bits_per_second: int
    expected_bits_per_second: int | None = None
    source: str = ""
    time: str


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the condition's status or reason."""

    time: str
    status: str
    reason: str
    message: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The object's status as a whole."""

    bootID: str  # noqa: N815  (the API's name)
    outcome: str
    blockedRung: str = ""  # noqa: N815
    recheck: str = ""
    rungs: tuple[Rung, ...] = ()
    rails: tuple[Rail, ...] = ()
    transitions: tuple[Transition, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The node as it is. `at` is the time of day as RFC 3339; `recheck` the last request that was done."""

    ledger: Ledger
    ladder: Ladder
    condition: Condition
    recheck: str
    at: str


EMPTY = Status(bootID="", outcome="unknown")
"""Of a FabricNode that no agent has written into yet."""


def describe(now: Now, before: Status) -> Status:
    """The status, with what `before` already said of earlier times."""
    return Status(
        bootID=now.ledger.boot_id,
        outcome=_OUTCOMES[now.condition.status],
        blockedRung=now.condition.blocked_rung,
        recheck=now.recheck,
        rungs=tuple(_rung(name, now, before) for name in now.ladder.rungs),
        rails=tuple(_rails(now, before))[:_MAX_RAILS],
        transitions=_transitions(now, before),
    )


def _rung(name: str, now: Now, before: Status) -> Rung:
    probes = [one for one in now.ladder.gating if ladders.rung(one) == name]
    worst = min(probes, key=lambda one: _WORST_FIRST.index(now.ledger.standing(one)))
    outcome = now.ledger.standing(worst)
    said = Rung(name=name, outcome=outcome.value if outcome else "pending", since=now.at)
    if outcome in {Outcome.FAIL, Outcome.UNKNOWN}:
        cause = now.ledger.entries[worst].cause
        text = f"{worst}: {cause.message}"[:_MAX_TEXT_CHARS]
        said = msgspec.structs.replace(said, reason=cause.reason, message=text)
    old = next((one for one in before.rungs if one.name == name), None)
    if old is not None and before.bootID == now.ledger.boot_id:
        same = (old.outcome, old.reason) == (said.outcome, said.reason)
        return msgspec.structs.replace(said, since=old.since) if same else said
    return said


def _rails(now: Now, before: Status) -> Iterable[Rail]:
    known = {(rail.device, rail.port): rail for rail in before.rails}
    for name in now.ladder.movers:
        entry = now.ledger.entries.get(name)
        for part in _measured(entry) if entry else ():
            device, _, port = part.part.rpartition("/")
            if not port.isdecimal():
                continue
            expected = part.values.get("expected_bits_per_second")
            rail = Rail(
                device=device,
                port=int(port),
                measured_bits_per_second=round(part.values["measured_bits_per_second"]),
                expected_bits_per_second=None if expected is None else round(expected),
                source=part.notes.get("expectation", "")[:_MAX_TEXT_CHARS],
                time=now.at,
            )
            old = known.get((rail.device, rail.port))
            yield old if old is not None and _is_no_news(old, rail) else rail


def _measured(entry: Entry) -> Iterable[Verdict]:
    return (part for part in entry.last.parts if "measured_bits_per_second" in part.values)


def _is_no_news(old: Rail, new: Rail) -> bool:
    moved = abs(new.measured_bits_per_second - old.measured_bits_per_second)
    same = (old.expected_bits_per_second, old.source) == (new.expected_bits_per_second, new.source)
    return same and moved <= _NEWS_SHARE * old.measured_bits_per_second


def _transitions(now: Now, before: Status) -> tuple[Transition, ...]:
    last = before.transitions[-1] if before.transitions else None
    said = now.condition
    if last is not None and (last.status, last.reason) == (said.status, said.reason):
        return before.transitions
    one = Transition(time=now.at, status=said.status, reason=said.reason, message=said.message)
    return (*before.transitions, one)[-_MAX_TRANSITIONS:]
