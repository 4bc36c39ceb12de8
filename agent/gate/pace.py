"""How fast something may be done: a bucket of tokens. Pure, takes `now`."""


class Pace:
    """So many a second in the long run, and `burst` at once."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next may be done; 0 if it may be done now."""
        self._refill(now)
        return max(0.0, (1 - self._tokens) / self._per_second)

    def take(self, now: float) -> bool:
        """Takes a token; whether there was one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now: float) -> None:
        grown = self._tokens + max(0.0, now - self._at) * self._per_second
        self._tokens, self._at = min(float(self._burst), grown), max(now, self._at)
