"""Moves bytes through every port of this machine and keeps what was seen; no opinion."""

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Iterator
from typing import Any

from probes.contract import Host, Unreadable
from probes.readers import counters, devices, gids, numa, payload, pci, ports, transfer, use, verbs

# The measurement ends with whichever comes first; the first is what perftest needs for a steady
# value, the second keeps a fast port's share of the probe below a tenth of a second.
BULK_SECONDS = 2.0
BULK_BYTES = 1 << 30
_NO_RC = {errno.EOPNOTSUPP, errno.ENOSYS}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortRun:
    """What happened on one port.

    `failure` is the step that did not work and `aftermath` what the port said then; `corrupted`
    says where bytes differ; `measured` is None where the bandwidth was not measured, because of
    `busy`, or because (`blind`) it can't be told whether the port is. `no_rc` says why the port has
    no reliable connections, and `moved_before` whether bytes moved earlier in this boot.
    `witnessed_bytes` is the payload between the two snapshots.
    """

    device: str
    port: int
    driver: str
    pci: str | None
    software: bool
    active: bool
    state: str
    gid: str = ""
    transport: str = ""
    mtu_bytes: int = 0
    port_bits_per_second: float | None = None
    port_why: str = ""
    pcie_bits_per_second: float | None = None
    pcie_why: str = ""
    busy: str = ""
    blind: str = ""
    no_rc: str = ""
    moved_before: bool = False
    failure: transfer.Failure | None = None
    aftermath: str = ""
    corrupted: str = ""
    measured: transfer.Measured | None = None
    before: counters.Snapshot | None = None
    after: counters.Snapshot | None = None
    witnessed_bytes: int = 0

    @property
    def name(self) -> str:
        """`mlx5_0/1`."""
        return f"{self.device}/{self.port}"


def read(host: Host) -> tuple[PortRun, ...]:
    """Runs every port, one after another.

    Raises:
        Unreadable: sysfs or verbs can't be read at all, or `host` is not the machine that this
            process runs on.
    """
    found = [(device, port) for device in devices.read(host) for port in ports.read(host, device)]
    if not found:
        return ()
    if not host.live:
        raise Unreadable(host.root, "is a captured tree: bytes move on a real machine only")
    verbs.modules()
    active = {
        (port.device, port.number): port.data_bits_per_second for _, port in found if port.active
    }
    uses = use.of_ports(host, active)
    return tuple(
        _run_port(host, device, port, uses.get((port.device, port.number), use.PortUse()))
        for device, port in found
    )


def _run_port(host: Host, device: devices.Device, port: ports.Port, used: use.PortUse) -> PortRun:
    run = PortRun(
        device=device.name,
        port=port.number,
        driver=device.driver,
        pci=device.pci,
        software=device.software,
        active=port.active,
        state=f"{port.state}, {port.phys_state}",
        port_bits_per_second=port.data_bits_per_second,
        port_why=port.rate_why,
        busy=used.why,
        blind=used.blind,
        moved_before=port.name in host.seen,
    )
    if not port.active:
        return run
    if device.pci is not None:
        path = pci.path(host, device.pci)
        run = dataclasses.replace(
            run, pcie_bits_per_second=path.payload_bits_per_second, pcie_why=path.why
        )
    try:
        with numa.near(host, device.name), verbs.opened(device.name) as context:
            return _run_open(host, run, port, context)
    except transfer.Failure as failure:
        return _failed(host, run, device, failure)
    except Unreadable as error:
        not_opened = transfer.Failure(step="open", code=0, why=error.why)
        return _failed(host, run, device, not_opened)


def _failed(host: Host, run: PortRun, device: devices.Device, failure: transfer.Failure) -> PortRun:
    """With what the port says right after: a link that went down explains more than a completion status."""
    if failure.step == "queue" and failure.code in _NO_RC:
        return dataclasses.replace(run, no_rc=failure.why)
    aftermath = ""
    with contextlib.suppress(Unreadable):
        now = next(port for port in ports.read(host, device) if port.number == run.port)
        aftermath = "" if now.active else f"; the port is {now.state}, {now.phys_state} now"
    return dataclasses.replace(run, failure=failure, aftermath=aftermath)


def _run_open(host: Host, run: PortRun, port: ports.Port, context: Any) -> PortRun:
    entries = gids.read(host, port.device, port.number)
    gid = gids.best(entries, port.link_layer, host.gid_index)
    if gid is None:
        chosen = (
            "no GID is set" if host.gid_index is None else f"GID index {host.gid_index} is not set"
        )
        raise transfer.Failure(step="connect", code=0, why=chosen)
    attributes = verbs.port_attributes(context, port.number)
    run = dataclasses.replace(
        run,
        gid=str(gid),
        transport=_transport(port.link_layer, gid),
        mtu_bytes=attributes.active_mtu_bytes,
    )
    with _two_ends(context, port.number, gid.index) as (first, second):
        before = counters.snapshot(host, port.device, port.number)
        moved, corrupted = _exchange(first, second)
        measured = None
        if not corrupted and not run.busy:
            measured = first.write(second.address, BULK_BYTES, time.monotonic() + BULK_SECONDS)
            moved += measured.payload_bytes
            corrupted = _difference("after the measurement", first.pattern, second)
        counters.settle(host, port.device, port.number)
        after = counters.snapshot(host, port.device, port.number)
    return dataclasses.replace(
        run,
        corrupted=corrupted,
        measured=measured,
        before=before,
        after=after,
        witnessed_bytes=moved,
    )


def _transport(link_layer: str, gid: gids.Gid) -> str:
    if link_layer == "InfiniBand":
        return "InfiniBand"
    if gid.kind != gids.ROCE_V2:
        return "RoCE v1"
    return "RoCE v2 IPv4" if gid.ipv4 else "RoCE v2 IPv6"


@contextlib.contextmanager
def _two_ends(
    context: Any, port: int, gid_index: int
) -> Iterator[tuple[transfer.End, transfer.End]]:
    """Two connected ends on one port, each with a pattern of its own that no earlier run had."""
    library = verbs.modules()
    with contextlib.ExitStack() as closing:
        pair = []
        for _ in range(2):
            end = transfer.End(library, context, port, gid_index)
            closing.callback(end.close)
            pair.append(end)
        first, second = pair
        first.connect(second.address)
        second.connect(first.address)
        for end in pair:
            end.fill(payload.pattern(int.from_bytes(os.urandom(8), "big")))
        yield first, second


def _exchange(first: transfer.End, second: transfer.End) -> tuple[int, str]:
    """Each end writes to the other and reads from it.

    Gives the bytes moved and the first difference, empty for none.
    """
    moved = 0
    for writer, reader in ((first, second), (second, first)):
        moved += writer.write(reader.address, 1, time.monotonic()).payload_bytes
        corrupted = _difference("RDMA WRITE", writer.pattern, reader)
        if corrupted:
            return moved, corrupted
    for reader, source in ((first, second), (second, first)):
        reader.clear()
        moved += reader.read(source.address).payload_bytes
        corrupted = _difference("RDMA READ", source.pattern, reader)
        if corrupted:
            return moved, corrupted
    second.clear()
    return moved, ""


def _difference(what: str, expected: bytes, end: transfer.End) -> str:
    offset = payload.first_difference(expected, end.received())
    if offset is None:
        return ""
    slot, within = divmod(offset, payload.SLOT_BYTES)
    return f"{what}: byte {within} of message {slot} is not what was sent"
