"""The breaker never lets more than its limits be closed, and never stops what has room."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.gate import breaker
from agent.gate.breaker import Limits, Member, Pool
from agent.gate.records import NodeView

LIMITS = Limits(recent_percent=10, recent_seconds=600, total_percent=30, absent_percent=5)
FINE = Member(closed_at=None, absent=False)
ABSENT = Member(closed_at=None, absent=True)
NODE = NodeView(name="a", boot_id="b", verified_boot_id="b", status="True")


def _pool(size: int, limits: Limits = LIMITS) -> Pool:
    pool = Pool(limits)
    for number in range(size):
        pool.put(f"n{number}", FINE)
    return pool


def _close(pool: Pool, name: str, at: float) -> None:
    pool.put(name, Member(closed_at=at, absent=False))


@pytest.mark.parametrize(("size", "at_once"), [(1, 1), (2, 1), (19, 1), (20, 2), (100, 10)])
def test_a_tenth_at_once_and_never_less_than_one(size: int, at_once: int) -> None:
    """The share of a pool that may be closed within ten minutes."""
    pool = _pool(size)
    for number in range(at_once):
        assert 1000 == pool.room_at(1000)
        _close(pool, f"n{number}", 1000)
    assert pool.room_at(1000) > 1000


def test_room_comes_back_with_time_until_three_tenths_are_closed() -> None:
    """Ten of a hundred each ten minutes, thirty in all; then only a node that opens makes room."""
    pool = _pool(100)
    now = 1000.0
    for number in range(30):
        at = pool.room_at(now)
        assert at == now or number in {10, 20}
        now = max(now, at)
        _close(pool, f"n{number}", now)
    assert 2200 == now
    assert math.inf == pool.room_at(1e9)
    pool.put("n0", FINE)
    assert 1e9 == pool.room_at(1e9)


def test_a_time_in_the_future_counts_as_now() -> None:
    """A taint that a wrong clock dated takes room, and gives it back."""
    pool = _pool(2)
    _close(pool, "n0", 9e9)
    pool.put("n1", FINE)
    assert 1600 <= _pool_of(pool, 3).room_at(1000)


def _pool_of(pool: Pool, more: int) -> Pool:
    """The same pool with more nodes, so that its total leaves room."""
    for number in range(more):
        pool.put(f"m{number}", FINE)
    return pool


@pytest.mark.parametrize(
    ("size", "absent", "mass"),
    [(1, 1, False), (2, 1, False), (2, 2, True), (40, 2, False), (40, 3, True), (100, 5, False)],
)
def test_mass_absence_is_more_than_a_twentieth_and_at_least_two(
    size: int, absent: int, *, mass: bool
) -> None:
    """One agent that is gone is its node's matter, however small the pool."""
    pool = _pool(size)
    for number in range(absent):
        pool.put(f"n{number}", ABSENT)
    assert mass == pool.mass_absence


@pytest.mark.parametrize(
    ("changes", "proven", "closed_at"),
    [
        ({}, True, None),
        ({"taint": "driver", "taint_since": 5.0}, True, 5.0),
        ({"taint": "driver"}, True, 0.0),
        ({"taint": "unverified", "taint_since": 5.0}, True, None),
        ({"taint": "driver", "taint_since": 5.0}, False, None),
    ],
)
def test_what_counts_as_closed(
    changes: dict[str, object], closed_at: float | None, *, proven: bool
) -> None:
    """A taint on a node that was proven, unless it is the one of a node that was not."""
    node = dataclasses.replace(NODE, **changes)  # type: ignore[arg-type]  # fields by name
    member = breaker.member(node, proven=proven, agent_ready=False)
    assert (closed_at, proven) == (member.closed_at, member.absent)


_steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 59.0, 300.0, 599.0, 600.0, 601.0]),
        st.integers(0, 60),
        st.sampled_from(["close", "close", "close", "open", "leave", "join"]),
    ),
    max_size=120,
)
_limits = st.builds(
    Limits,
    recent_percent=st.sampled_from([0.0, 5.0, 10.0, 100.0]),
    recent_seconds=st.sampled_from([1.0, 600.0]),
    total_percent=st.sampled_from([0.0, 30.0, 100.0]),
    absent_percent=st.just(5.0),
)


@given(st.integers(1, 60), _limits, _steps)
def test_limits_hold_over_every_history(
    size: int, limits: Limits, steps: list[tuple[float, int, str]]
) -> None:
    """Counted anew at each closing: within both limits or the only one; and refused only for a reason."""
    pool = _pool(size, limits)
    closed: dict[str, float | None] = {f"n{number}": None for number in range(size)}
    now = 1000.0
    for wait, number, what in steps:
        now += wait
        name = f"n{number}"
        if what == "leave" and len(closed) > 1:
            closed.pop(name, None)
            pool.drop(name)
        elif (what == "join" and name not in closed) or (what == "open" and name in closed):
            closed[name] = None
            pool.put(name, FINE)
        elif what == "close" and name in closed and closed[name] is None:
            times = [at for at in closed.values() if at is not None]
            recent = [at for at in times if at > now - limits.recent_seconds]
            share = len(closed) / 100
            room = (
                len(times) < max(1, int(limits.total_percent * share))
                and len(recent) < max(1, int(limits.recent_percent * share))
            )  # fmt: skip
            at = pool.room_at(now)
            assert room == (at == now)
            assert at >= now
            if room:
                closed[name] = now
                _close(pool, name, now)
        assert pool.closed == sum(at is not None for at in closed.values())
