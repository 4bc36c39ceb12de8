"""Counters that witness a transfer: what the device itself says it moved, and what TCP moved meanwhile."""

import dataclasses
import time
from pathlib import Path

from probes.contract import Host

# IBTA PortXmitData and PortRcvData count in units of four bytes; the kernel prints them raw.
_PORT_DATA_UNIT_BYTES = 4
# hw_counters are cached by the kernel for `lifespan` milliseconds (default 10).
_LIFESPAN_DEFAULT_SECONDS = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A port's counters and the machine's TCP at one moment.

    `transmitted_bytes` and `received_bytes`: None where the device does not count them. `packets`
    counts everything the device sent, same-device loopback included (rxe); None on devices that
    don't tell. `write_requests`: RDMA WRITE requests that arrived (mlx5). `tcp_segments`: segments
    sent by all of this network namespace.
    """

    taken: float
    transmitted_bytes: int | None
    received_bytes: int | None
    packets: int | None
    write_requests: int | None
    tcp_segments: int | None


def snapshot(host: Host, device: str, port: int) -> Snapshot:
    """The counters now. A counter that is absent or unreadable is None: few devices have all of them."""
    folder = host.path(f"/sys/class/infiniband/{device}/ports/{port}")
    return Snapshot(
        taken=time.monotonic(),
        transmitted_bytes=_bytes(folder, "counters/port_xmit_data", "hw_counters/tx_bytes"),
        received_bytes=_bytes(folder, "counters/port_rcv_data", "hw_counters/rx_bytes"),
        packets=_number(folder / "hw_counters/sent_pkts"),
        write_requests=_number(folder / "hw_counters/rx_write_requests"),
        tcp_segments=_tcp_segments(host.path("/proc/net/snmp")),
    )


def settle(host: Host, device: str, port: int) -> None:
    """Waits until cached counters must have been read anew."""
    folder = host.path(f"/sys/class/infiniband/{device}/ports/{port}")
    lifespan = _number(folder / "hw_counters/lifespan")
    time.sleep(2 * (lifespan / 1000 if lifespan else _LIFESPAN_DEFAULT_SECONDS))


def bits_per_second(before: Snapshot, after: Snapshot) -> float | None:
    """The busier direction's rate between two snapshots; None where the device counts no bytes."""
    seconds = after.taken - before.taken
    rates = [
        8 * (new - old) / seconds
        for old, new in (
            (before.transmitted_bytes, after.transmitted_bytes),
            (before.received_bytes, after.received_bytes),
        )
        if old is not None and new is not None and seconds > 0
    ]
    return max(rates, default=None)


def _bytes(folder: Path, in_words: str, in_bytes: str) -> int | None:
    words = _number(folder / in_words)
    return words * _PORT_DATA_UNIT_BYTES if words is not None else _number(folder / in_bytes)


def _number(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            return int(file.read(64))
    except (OSError, ValueError):
        return None


def _tcp_segments(path: Path) -> int | None:
    """`OutSegs` of the `Tcp:` lines, a header line and a value line."""
    try:
        with path.open(encoding="utf-8") as file:
            names, values = [line.split() for line in file if line.startswith("Tcp:")]
        return int(values[names.index("OutSegs")])
    except (OSError, ValueError):
        return None
