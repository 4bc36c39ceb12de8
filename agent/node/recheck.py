"""A human's request to look at everything again: when it was asked, and when it is done. Pure."""

from agent.node.ladder import Ladder
from agent.node.ledger import Ledger


class Recheck:
    """One request at a time; a newer one takes the place of one that is not done."""

    def __init__(self, last_done: str) -> None:
        self.last_done = last_done
        self._wanted = last_done
        self._asked_at = 0.0

    def asked(self, request: str, now: float) -> bool:
        """Whether `request` (any text; empty for none) is a new one. `now`: seconds since boot."""
        if not request or request in {self._wanted, self.last_done}:
            return False
        self._wanted, self._asked_at = request, now
        return True

    def done(self, ledger: Ledger, ladder: Ladder) -> bool:
        """Whether every probe that can run has ended once since the request. True once.

        What moves data can't while a lower rung does not stand.
        """
        if self._wanted == self.last_done:
            return False
        for one in ladder.probes:
            if one.moves_data and not all(ledger.stands(name) for name in ladder.below(one.name)):
                continue
            entry = ledger.entries.get(one.name)
            if entry is None or entry.last_at <= self._asked_at:
                return False
        self.last_done = self._wanted
        return True
