"""Bytes that move are counted and compared; every way in which they do not move is told apart.

On real verbs.
"""

import contextlib
import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.contract import Host
from probes.readers import counters, payload, transfer, verbs

pytestmark = pytest.mark.in_guest

DEVICE = "rxe0"
PORT = 1
# Of rxe0 in a guest: index 0 is link-local IPv6, index 1 the IPv4 address.
IPV6_GID, IPV4_GID = 0, 1


@pytest.fixture
def context() -> Iterator[Any]:
    """The guest's device, open."""
    with verbs.opened(DEVICE) as one:
        yield one


@pytest.fixture
def ends(context: Any) -> Iterator[tuple[transfer.End, transfer.End]]:
    """Two ends on one port, not connected."""
    library = verbs.modules()
    first = transfer.End(library, context, PORT, IPV4_GID)
    second = transfer.End(library, context, PORT, IPV4_GID)
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def connected(ends: tuple[transfer.End, transfer.End]) -> tuple[transfer.End, transfer.End]:
    """Two ends that can reach each other, with a pattern each."""
    first, second = ends
    first.connect(second.address)
    second.connect(first.address)
    first.fill(payload.pattern(1))
    second.fill(payload.pattern(2))
    return first, second


def soon() -> float:
    """Time enough for a few megabytes."""
    return time.monotonic() + 20


def test_bytes_arrive_whole_in_both_directions_and_can_be_read_back(
    connected: tuple[transfer.End, transfer.End],
) -> None:
    """Each end's pattern fills all of the other's receive region; a READ fetches what the partner sends from."""
    first, second = connected
    measured = first.write(second.address, 1, soon())
    assert measured.payload_bytes > 0
    assert measured.seconds > 0
    second.write(first.address, 1, soon())
    assert payload.first_difference(payload.pattern(1), second.received()) is None
    assert payload.first_difference(payload.pattern(2), first.received()) is None
    first.clear()
    first.read(second.address)
    assert payload.first_difference(payload.pattern(2), first.received()) is None


def test_one_wrong_byte_is_found_where_it_is(connected: tuple[transfer.End, transfer.End]) -> None:
    """A single changed byte, the last one included, has its offset reported."""
    first, second = connected
    first.write(second.address, 1, soon())
    received = second.received()
    last = len(received) - 1
    received[last] ^= 1
    assert last == payload.first_difference(payload.pattern(1), received)


def test_a_run_of_another_seed_leaves_another_pattern(
    connected: tuple[transfer.End, transfer.End],
) -> None:
    """What an earlier run left in memory never passes for what this one should have brought."""
    first, second = connected
    first.write(second.address, 1, soon())
    assert payload.first_difference(payload.pattern(3), second.received()) is not None


def test_the_device_counts_what_was_moved(connected: tuple[transfer.End, transfer.End]) -> None:
    """rxe's packet counter accounts for the payload, and TCP stays flat."""
    first, second = connected
    host = Host()
    before = counters.snapshot(host, DEVICE, PORT)
    measured = first.write(second.address, 16 << 20, soon())
    counters.settle(host, DEVICE, PORT)
    after = counters.snapshot(host, DEVICE, PORT)
    assert before.packets is not None
    assert after.packets is not None
    assert (after.packets - before.packets) * 4096 >= 0.95 * measured.payload_bytes
    assert before.tcp_segments is not None
    assert after.tcp_segments is not None
    assert (after.tcp_segments - before.tcp_segments) * 1448 < 0.05 * measured.payload_bytes


def test_time_bounds_a_transfer(connected: tuple[transfer.End, transfer.End]) -> None:
    """After `until` nothing more is posted: a terabyte takes a second."""
    first, second = connected
    started = time.monotonic()
    first.write(second.address, 1 << 40, started + 1)
    assert time.monotonic() - started < 10


def failure(end: transfer.End, address: transfer.Address) -> transfer.Failure:
    """What a write to `address` fails with."""
    with pytest.raises(transfer.Failure) as caught:
        end.write(address, 1, soon())
    return caught.value


def test_a_dead_partner_exceeds_the_retries(connected: tuple[transfer.End, transfer.End]) -> None:
    """The partner's queue pair is gone: status 12 within the retry time, not a hang."""
    first, second = connected
    address = second.address
    second.close()
    found = failure(first, address)
    assert ("write", 12) == (found.step, found.code)
    assert "transport retries exceeded" in found.why


def altered(address: transfer.Address, **changes: Any) -> transfer.Address:
    """The address with some fields changed."""
    fields = {name: getattr(address, name) for name in transfer.Address.__dataclass_fields__}
    return transfer.Address(**{**fields, **changes})


def test_a_wrong_rkey_is_refused_by_the_partner(
    connected: tuple[transfer.End, transfer.End],
) -> None:
    """Memory that was not opened to us is a remote access error (10)."""
    first, second = connected
    found = failure(first, altered(second.address, rkey=second.address.rkey ^ 0xFFFFFF))
    assert ("write", 10) == (found.step, found.code)


def test_gids_of_two_families_do_not_connect(
    context: Any, ends: tuple[transfer.End, transfer.End]
) -> None:
    """IPv6 here and IPv4 there is EINVAL on the way to RTR."""
    first, _ = ends
    other = transfer.End(verbs.modules(), context, PORT, IPV6_GID)
    with pytest.raises(transfer.Failure) as caught:
        other.connect(first.address)
    other.close()
    assert ("connect", errno.EINVAL) == (caught.value.step, caught.value.code)


def test_path_mtus_that_differ_are_an_invalid_request(
    ends: tuple[transfer.End, transfer.End],
) -> None:
    """Packets larger than the receiver's path MTU end in status 9."""
    first, second = ends
    first.connect(second.address)
    second.connect(altered(first.address, mtu_code=1))
    first.fill(payload.pattern(1))
    found = failure(first, second.address)
    assert ("write", 9) == (found.step, found.code)


def expect(end: transfer.End, partner: transfer.End, *, ahead: int) -> None:
    """Connects both, `end` waiting for a sequence number that far ahead of the one that comes."""
    partner.connect(end.address)
    end.connect(altered(partner.address, psn=(partner.address.psn + ahead) % (1 << 24)))


def test_a_sequence_number_from_the_future_stalls(
    ends: tuple[transfer.End, transfer.End],
) -> None:
    """What was never sent is waited for on rxe; our own clock ends it or the retries do."""
    first, second = ends
    expect(second, first, ahead=-0x400000)
    found = failure(first, second.address)
    assert found.code in {transfer.OPERATION_TIMED_OUT, 12}


def test_a_sequence_number_from_the_past_writes_nothing_whatever_is_completed(
    ends: tuple[transfer.End, transfer.End],
) -> None:
    """rxe takes it for a repeat and mostly acknowledges it, as a success: only the destination tells."""
    first, second = ends
    expect(second, first, ahead=0x400000)
    pattern = payload.pattern(1)
    first.fill(pattern)
    second.clear()
    with contextlib.suppress(transfer.Failure):
        first.write(second.address, 1 << 20, soon())
    assert bytes(second.received()[: len(pattern)]) == bytes(len(pattern))


def test_a_full_send_queue_refuses_more(connected: tuple[transfer.End, transfer.End]) -> None:
    """More work requests than the queue holds: ENOMEM at the post."""
    first, second = connected
    address = second.address
    second.close()  # nothing is acknowledged, so nothing leaves the queue
    chain = first._chain(verbs.modules().enums.IBV_WR_RDMA_WRITE, address, 32, 0, 1 << 20)
    with pytest.raises(transfer.Failure) as caught:
        for _ in range(64):
            first._post(chain[0])
    assert ("post", errno.ENOMEM) == (caught.value.step, caught.value.code)


def test_a_link_that_goes_down_ends_the_transfer(
    connected: tuple[transfer.End, transfer.End],
) -> None:
    """The netdev goes down in the middle: an error or a stall, never a success."""
    first, second = connected
    down = "sleep 0.5; ip link set eth1 down; sleep 4; ip link set eth1 up"
    with subprocess.Popen(["sh", "-c", down]) as process:
        with pytest.raises(transfer.Failure) as caught:
            first.write(second.address, 1 << 40, time.monotonic() + 30)
        process.wait()
    assert caught.value.step in {"write", "post"}
    wait_for_gid()


def wait_for_gid() -> None:
    """The IPv4 GID comes back a moment after its link."""
    gid = Path(f"/sys/class/infiniband/{DEVICE}/ports/1/gids/{IPV4_GID}")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if "ffff" in gid.read_text():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{gid} did not come back")
