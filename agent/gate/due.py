"""When to look at which node again. Pure."""

import heapq
import math


class Due:
    """When to look at which node again; the earliest counts."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def put(self, name: str, at: float | None) -> None:
        """Looks at it at that time, if not before; None: no time."""
        if at is not None and at < self._at.get(name, math.inf):
            self._at[name] = at
            heapq.heappush(self._heap, (at, name))

    def drop(self, name: str) -> None:
        """Does not look at it."""
        self._at.pop(name, None)

    def pop(self, now: float) -> str | None:
        """The one that has been due for longest, None when none is."""
        while self._heap and self._heap[0][0] <= now:
            at, name = heapq.heappop(self._heap)
            if self._at.get(name) == at:
                del self._at[name]
                return name
        return None

    def first(self) -> float:
        """When the next one is due; infinite when none is."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf
