"""Ports of RDMA devices: state, link layer, MTU, and the data rate with its trap.

The kernel prints speed codes that it does not know as SDR (2.5 Gb/s per lane), so "SDR" on fast
hardware says nothing. On Ethernet the network device's speed is the better source.
"""

import dataclasses
import re
from pathlib import Path

from probes.contract import Host, Unreadable
from probes.readers import devices, gids, sysfs

# Signalling rate per lane → data rate, Gb/s (InfiniBand Architecture volume 1,
# `ib_port_attr_to_speed_info` in the kernel).
_DATA_PER_LANE = {"SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64}
_DATA_PER_LANE |= {"EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0}
_RATE = re.compile(r"(?P<gigabits>\d+(?:\.\d+)?) Gb/sec \((?P<lanes>\d+)X(?: (?P<speed>\w+))?\)")
_GIGA = 1e9
_MEGA = 1e6
# What `iboe_get_mtu` of the kernel takes off an Ethernet MTU: GRH, UDP, BTH, XRC, AtomicETH and
# ICRC.
_ROCE_HEADER_BYTES = 40 + 8 + 12 + 4 + 28 + 4
_MTUS = (4096, 2048, 1024, 512, 256)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port.

    `state` and `phys_state` are the kernel's words (`ACTIVE`, `LinkUp`). `data_bits_per_second` is
    the data rate of the link (not the signalling rate), None where unknown, and then `rate_why`
    says why; else it says where it came from. `mtu_bytes` is the RDMA MTU that the netdev's MTU
    allows, None on InfiniBand, where sysfs does not tell.
    """

    device: str
    number: int
    state: str
    phys_state: str
    link_layer: str
    rate: str
    data_bits_per_second: float | None
    rate_why: str
    netdev: str | None
    netdev_mtu: int | None
    mtu_bytes: int | None
    sm_lid: int

    @property
    def name(self) -> str:
        """`mlx5_0/1`."""
        return f"{self.device}/{self.number}"

    @property
    def active(self) -> bool:
        """Whether the logical state is ACTIVE."""
        return self.state == "ACTIVE"


def read(host: Host, device: devices.Device) -> tuple[Port, ...]:
    """All ports of a device.

    Raises:
        Unreadable: a file that every port has can't be read.
    """
    return tuple(_port(host, device, number) for number in device.ports)


def _port(host: Host, device: devices.Device, number: int) -> Port:
    folder = host.path(f"{devices.INFINIBAND}/{device.name}/ports/{number}")
    link_layer = sysfs.value(folder / "link_layer")
    netdev = _netdev(folder, device) if link_layer == "Ethernet" else None
    netdev_mtu = _netdev_mtu(host, netdev)
    rate = sysfs.value(folder / "rate")
    data_rate, why = _data_rate(host, device, rate, netdev)
    return Port(
        device=device.name,
        number=number,
        state=_word(folder / "state"),
        phys_state=_word(folder / "phys_state"),
        link_layer=link_layer,
        rate=rate,
        data_bits_per_second=data_rate,
        rate_why=why,
        netdev=netdev,
        netdev_mtu=netdev_mtu,
        mtu_bytes=None if netdev_mtu is None else roce_mtu(netdev_mtu),
        sm_lid=_sm_lid(folder / "sm_lid", link_layer),
    )


def _word(path: Path) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    found = sysfs.value(path)
    number, colon, word = found.partition(": ")
    if not colon or not number.isdigit():
        raise Unreadable(path, f"is not a port state: {found[:40]!r}")
    return word


def _sm_lid(path: Path, link_layer: str) -> int:
    """Only InfiniBand has a subnet manager; there a missing file is not the 0 of a port that nobody manages."""
    return sysfs.number(path) if link_layer == "InfiniBand" else 0


def _netdev(folder: Path, device: devices.Device) -> str | None:
    """The port's network device: the one of its GIDs, else the only one of the function."""
    return gids.first_netdev(folder) or (device.netdevs[0] if len(device.netdevs) == 1 else None)


def _netdev_mtu(host: Host, netdev: str | None) -> int | None:
    if netdev is None:
        return None
    path = host.path(f"/sys/class/net/{netdev}/mtu")
    return sysfs.number(path) if sysfs.exists(path) else None


def roce_mtu(netdev_mtu: int) -> int | None:
    """The RDMA MTU that fits into a network device's MTU; None where not even 256 bytes do."""
    return next((size for size in _MTUS if size + _ROCE_HEADER_BYTES <= netdev_mtu), None)


def _data_rate(
    host: Host, device: devices.Device, rate: str, netdev: str | None
) -> tuple[float | None, str]:
    """Bits per second and their source, or None and the reason."""
    if device.software:
        return None, "software RDMA has no rate of its own"
    ethernet = _ethernet_speed(host, netdev)
    if ethernet is not None:
        return ethernet * _MEGA, f"speed of {netdev}"
    return parse_rate(rate)


def _ethernet_speed(host: Host, netdev: str | None) -> int | None:
    """Mb/s of a network device. A link that is down says EINVAL or -1, which is no speed."""
    if netdev is None:
        return None
    try:
        found = sysfs.number(host.path(f"/sys/class/net/{netdev}/speed"))
    except Unreadable:
        return None
    return found if found > 0 else None


def parse_rate(rate: str) -> tuple[float | None, str]:
    """Data rate (bits per second) of sysfs' words (`400 Gb/sec (4X NDR)`) and its source, or None and why not."""
    found = _RATE.fullmatch(rate)
    if not found:
        return None, f"rate {rate!r} is not understood"
    speed = found["speed"]
    if speed is None:
        return None, f"rate {rate!r} names no speed"
    if speed == "SDR":
        return None, f"rate {rate!r}: the kernel prints speeds that it does not know as SDR"
    per_lane = _DATA_PER_LANE.get(speed)
    if per_lane is None:
        return None, f"speed {speed} is not known here"
    return int(found["lanes"]) * per_lane * _GIGA, f"rate {rate}"
