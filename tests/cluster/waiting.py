"""Waiting for something with a deadline, and saying what was seen when it does not come."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.cluster import cache

T = TypeVar("T")


def until(
    what: str,
    check: Callable[[], T | None],
    *,
    seconds: float,
    every: float = 0.2,
    detail: Callable[[], str] = str,
) -> T:
    """The first true value that `check` gives.

    A `RigError` from `check` means not yet, and its text ends up in the failure.

    Args:
        what: what is waited for, as a person would say it.
        check: gives something true when it is there.
        seconds: the deadline.
        every: pause between two checks, seconds.
        detail: evidence for the failure message (a log's end).

    Raises:
        RigError: the deadline passed, or (at once) a program that is needed has ended.
    """
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            if found := check():
                return found
            last = ""
        except cache.ProgramEndedError:
            raise
        except cache.RigError as error:
            last = f"; last: {error}"
        if time.monotonic() > deadline:
            raise cache.RigError(f"waited {seconds:.0f} s for {what}{last}\n{detail()}".rstrip())
        time.sleep(every)
