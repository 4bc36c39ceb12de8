"""Which probes are due: all at start, passive ones often, those that move data rarely and one at a time. Pure."""

import dataclasses
import hashlib

from agent.node.ladder import Ladder
from agent.node.ledger import Ledger, is_deferred
from probes.contract import Outcome, ProbeInfo, Verdict

# After a verdict that is not good, look again this soon (or sooner, where the probe's own period is
# shorter). What moves data waits longer: a failing run holds the port for seconds.
_PASSIVE_RETRY_SECONDS = 10.0
_MOVER_RETRY_SECONDS = 60.0
_UNKNOWN_RETRY_SECONDS = 60.0
# On a node that was not verified yet nothing is at work that looking could disturb, and work waits for it.
_UNKNOWN_AT_FIRST_SECONDS = 10.0
# A measurement that was put off because the port was in use.
_DEFERRED_RETRY_SECONDS = 600.0
_JITTER = 0.1
# A changed port is looked at now by the rung that looks at links; a device may have gone with it, which the rung below
# looks for, though not each second while a link flaps.
_LINK_RUNG, _DEVICE_RUNG = "driver", "inventory"
_DEVICE_PAUSE_SECONDS = 10.0
_GOOD = {Outcome.PASS, Outcome.SKIP}


@dataclasses.dataclass(slots=True)
class Schedule:
    """When each probe is next due, in seconds since boot. Probes not in `next_at` are due now."""

    ladder: Ladder
    node: str
    recovery_spacing_seconds: float
    next_at: dict[str, float] = dataclasses.field(default_factory=dict)

    def due(self, now: float, ledger: Ledger, running: frozenset[str]) -> tuple[str, ...]:
        """Names of probes to start, lowest rung first."""
        mover_runs = any(one.moves_data for one in self.ladder.probes if one.name in running)
        found = []
        for one in self.ladder.probes:
            if one.name in running or not self._is_due(one, now, ledger):
                continue
            if one.moves_data:
                if mover_runs or not self._has_ground(one, ledger):
                    continue
                mover_runs = True
            found.append(one.name)
        return tuple(found)

    def _is_due(self, one: ProbeInfo, now: float, ledger: Ledger) -> bool:
        entry = ledger.entries.get(one.name)
        if entry and entry.stale_since is not None and entry.stale_since >= entry.last_at:
            return True
        return now >= self.next_at.get(one.name, 0.0)

    def _has_ground(self, one: ProbeInfo, ledger: Ledger) -> bool:
        """Whether the lower rungs stand and were last seen well: a port that just went down is sent nothing."""
        return all(
            ledger.stands(name) and ledger.entries[name].last.outcome in _GOOD
            for name in self.ladder.below(one.name)
        )

    def finished(self, name: str, verdict: Verdict, now: float, ledger: Ledger) -> None:
        """Notes a run's end; `ledger` is the one after it."""
        one = self.ladder.probe(name)
        if one is not None:
            self.next_at[name] = now + self._pause(one, verdict, ledger)

    def _pause(self, one: ProbeInfo, verdict: Verdict, ledger: Ledger) -> float:
        regular = one.every * (1 + _JITTER * _phase(self.node, one.name))
        if verdict.outcome is Outcome.UNKNOWN:
            soon = _UNKNOWN_RETRY_SECONDS if ledger.verified else _UNKNOWN_AT_FIRST_SECONDS
            return min(regular, soon)
        if verdict.outcome is Outcome.FAIL:
            return min(regular, _MOVER_RETRY_SECONDS if one.moves_data else _PASSIVE_RETRY_SECONDS)
        if is_deferred(verdict):
            return min(regular, _DEFERRED_RETRY_SECONDS)
        if ledger.standing(one.name) is Outcome.FAIL:
            return min(regular, self.recovery_spacing_seconds)
        return regular

    def resume(self, ledger: Ledger) -> None:
        """After a restart in the same boot and under the same limits: what moves data keeps its time."""
        for one in self.ladder.probes:
            entry = ledger.entries.get(one.name)
            if entry is not None and one.moves_data:
                self.next_at[one.name] = entry.last_at + self._pause(one, entry.last, ledger)

    def again(self) -> None:
        """Somebody asked: everything is due. What is in use is spared as ever."""
        self.next_at.clear()

    def changed(self, now: float, ledger: Ledger) -> None:
        """A port's state changed, or a port came or went: what looks at links and devices is due."""
        for one in self.ladder.probes:
            if one.moves_data or one.rung not in {_LINK_RUNG, _DEVICE_RUNG}:
                continue
            due = now
            entry = ledger.entries.get(one.name)
            if one.rung == _DEVICE_RUNG and entry is not None:
                due = max(now, entry.last_at + _DEVICE_PAUSE_SECONDS)
            self.next_at[one.name] = min(due, self.next_at.get(one.name, due))


def _phase(node: str, probe: str) -> float:
    """A fixed number from -1 to 1, so that a fleet that starts at once does not run in step for ever."""
    digest = hashlib.sha256(f"{node}/{probe}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 0x7FFFFFFF - 1
