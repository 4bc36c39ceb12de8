"""What the daemon tells whoever asks over HTTP: is it well, is it ready, and what stands for each probe and why."""

import threading
import time

import msgspec

from agent import endpoint
from agent.node import clock
from agent.node.condition import Condition
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger

_TICK_LIMIT_SECONDS = 10.0
_LATE_PERIODS = 3.0


class Report:
    """A snapshot that the loop's thread writes and the HTTP threads read."""

    def __init__(self, ladder: Ladder, node: str) -> None:
        self._ladder = ladder
        self._node = node
        self._lock = threading.Lock()
        self._ticked = time.monotonic()
        self._condition: Condition | None = None
        self._ledger: Ledger | None = None

    def tick(self) -> None:
        """The loop went round."""
        self._ticked = time.monotonic()

    def show(self, condition: Condition, ledger: Ledger) -> None:
        """The newest state."""
        with self._lock:
            self._condition, self._ledger = condition, ledger

    def not_ticking(self) -> str:
        """Why the loop is not well, empty when it is."""
        silent = time.monotonic() - self._ticked
        return (
            f"the loop has not gone round for {silent:.0f} s"
            if silent > _TICK_LIMIT_SECONDS
            else ""
        )

    def not_ready(self) -> str:
        """Why what this node says is not fresh, empty when every passive probe has ended not long ago."""
        with self._lock:
            ledger = self._ledger
        now = clock.since_boot()
        for one in self._ladder.probes:
            if one.moves_data:
                continue
            entry = ledger.entries.get(one.name) if ledger else None
            if entry is None:
                return f"{one.name} has not run yet"
            late = now - entry.last_at
            if late > _LATE_PERIODS * one.every + one.deadline:
                return f"{one.name} last ended {late:.0f} s ago, its period is {one.every:g} s"
        return self.not_ticking()

    def page(self) -> endpoint.Answer:
        """Everything, as JSON."""
        with self._lock:
            condition, ledger = self._condition, self._ledger
        body = {
            "node": self._node,
            "boot_id": ledger.boot_id if ledger else None,
            "condition": condition,
            "rungs": self._ladder.rungs,
            "gating": self._ladder.gating,
            "probes": ledger.entries if ledger else {},
            "seconds_since_boot": clock.since_boot(),
        }
        return endpoint.Answer(200, msgspec.json.encode(body) + b"\n", endpoint.JSON)
