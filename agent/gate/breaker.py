"""How many nodes that were proven may be closed at once. Pure: times come in, nothing goes out.

A node that was never proven in its boot is closed whatever this says: it has no work to lose. But
one bad check, one restart of a subnet manager or one broken image of the agent can speak against
every node at the same moment, and a gate that believes it empties the cluster.

Nothing is stored for it: the taints themselves say since when they are there, so a new leader counts
what the old one did.
"""

import bisect
import dataclasses
import math

from agent.gate.decision import UNVERIFIED
from agent.gate.records import NodeView

# One agent that is gone is that node's matter, however small the pool is.
_MASS_ABSENCE = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Shares of a pool, in percent; where a share is less than one node, one node may be closed.

    `absent_percent` is the share of absent agents beyond which absence closes nobody.
    """

    recent_percent: float
    recent_seconds: float
    total_percent: float
    absent_percent: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What counts about a node.

    `closed_at` is since when it is closed though it was proven, None where it is not. `absent` is
    whether it was proven and its agent is away.
    """

    closed_at: float | None
    absent: bool


class Pool:
    """The nodes of one pool."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._members: dict[str, Member] = {}
        self._closed_at: list[float] = []
        self.absent: set[str] = set()
        """Nodes that were proven and have no agent."""
        self.held: dict[str, str] = {}
        """Nodes that would be closed, were there room for them, and as what (the taint's value)."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def closed(self) -> int:
        """Nodes that were proven and are closed."""
        return len(self._closed_at)

    def put(self, name: str, member: Member) -> None:
        """Takes a node in, or what is new about it."""
        self.drop(name)
        self._members[name] = member
        if member.absent:
            self.absent.add(name)
        if member.closed_at is not None:
            bisect.insort(self._closed_at, member.closed_at)

    def drop(self, name: str) -> None:
        """Forgets a node."""
        member = self._members.pop(name, None)
        if member is None:
            return
        self.absent.discard(name)
        if member.closed_at is not None:
            del self._closed_at[bisect.bisect_left(self._closed_at, member.closed_at)]

    def room_at(self, now: float) -> float:
        """When one more node that was proven may be closed, as far as is known; `now` if it may be at once.

        Args:
            now: seconds since 1970.
        """
        limits = self._limits
        if self.closed >= self._share(limits.total_percent):
            # Only a node that opens makes room, and that has no time.
            return math.inf
        since = now - limits.recent_seconds
        # A time in the future is a clock that was wrong: it counts as now.
        recent = self._closed_at[bisect.bisect_right(self._closed_at, since) :]
        allowed = self._share(limits.recent_percent)
        if len(recent) < allowed:
            return now
        return min(recent[len(recent) - allowed], now) + limits.recent_seconds

    @property
    def mass_absence(self) -> bool:
        """Whether so many agents are away that it is no matter of their nodes."""
        limit = len(self._members) * self._limits.absent_percent / 100
        return len(self.absent) >= _MASS_ABSENCE and len(self.absent) > limit

    def _share(self, percent: float) -> int:
        return max(1, math.floor(len(self._members) * percent / 100))


def member(node: NodeView, *, proven: bool, agent_ready: bool) -> Member:
    """What counts about a node.

    Args:
        node: the node as seen.
        proven: whether it was proven in its boot, or adopted in it.
        agent_ready: whether an agent's pod on it is ready.
    """
    # Closed as unverified is the strict half of the rule, also while a first proof settles.
    limited = proven and node.taint is not None and node.taint != UNVERIFIED
    return Member(
        closed_at=(node.taint_since or 0.0) if limited else None, absent=proven and not agent_ready
    )
