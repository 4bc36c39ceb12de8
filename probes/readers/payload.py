"""What a transfer carries, and how it is known to have arrived."""

import random

# A message as in perftest's ib_write_bw.
SLOT_BYTES = 64 * 1024
# Each end has two regions, what it sends and what it receives: 2 MiB in all, which stays in a CPU's cache.
SLOTS = 16
REGION_BYTES = SLOTS * SLOT_BYTES


def pattern(seed: int) -> bytes:
    """A region's worth of bytes in which every position differs: a slot that lands in another's place is seen."""
    return random.Random(seed).randbytes(REGION_BYTES)  # noqa: S311  (a pattern, not a secret)


def first_difference(expected: bytes, received: memoryview) -> int | None:
    """Offset of the first byte that differs, None where all are equal."""
    if received == expected:
        return None
    return next(i for i in range(len(expected)) if received[i] != expected[i])
