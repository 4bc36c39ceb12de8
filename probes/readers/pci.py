"""The PCIe path from a device to the root: the narrowest link decides what the device can move.

Virtual machines show topologies that do not exist ("Unknown", or one 2.5 GT/s lane in front of a
400 Gb/s NIC). A link that can't be believed is left out with the reason, rather than taken for a
small one.
"""

import dataclasses
import re
from pathlib import Path

from probes.contract import Host, Unreadable
from probes.readers import sysfs

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
# GT/s per lane → share that is data: 8b/10b, 128b/130b, and FLIT mode's 236 of 256 bytes (PCI
# Express Base 6.0).
_ENCODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 236 / 256}
# Header, sequence number, LCRC and framing around each TLP's payload.
_TLP_OVERHEAD_BYTES = 26
_DEFAULT_PAYLOAD_BYTES = 256
_SLOWEST = 2.5
# Of the configuration space (PCI Express Base, 7.5.1 and 7.5.3).
_CAPABILITIES, _PCIE_CAPABILITY, _DEVICE_CONTROL = 0x34, 0x10, 8
_CONFIG_BYTES = 256
_GIGA = 1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One PCIe link, named by the function at its lower end."""

    address: str
    gigatransfers_per_second: float
    lanes: int
    max_gigatransfers_per_second: float | None
    max_lanes: int | None

    @property
    def raw_bits_per_second(self) -> float:
        """After line encoding, before packets."""
        encoding = _ENCODING.get(self.gigatransfers_per_second, 128 / 130)
        return self.gigatransfers_per_second * _GIGA * self.lanes * encoding


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PciPath:
    """The links from a device to the root.

    `payload_bits_per_second` is what the narrowest link leaves for data, None where none can be
    believed, and then `why` says why; else `why` names the narrowest link.
    """

    links: tuple[Link, ...]
    payload_bits_per_second: float | None
    why: str


def path(host: Host, address: str) -> PciPath:
    """The path of a PCI function. A virtual function's is that of its physical one. Never raises:
    what can't be read is in `why`, since a rate can also be judged without PCIe.
    """
    function = host.path(f"/sys/bus/pci/devices/{address}")
    try:
        if sysfs.exists(function / "physfn"):
            function = function / "physfn"
        if not sysfs.exists(function):
            return PciPath(links=(), payload_bits_per_second=None, why=f"{address} is not in sysfs")
        return _measure(function.resolve())
    except Unreadable as error:
        return PciPath(links=(), payload_bits_per_second=None, why=str(error))


def _measure(function: Path) -> PciPath:
    links = []
    doubts = []
    for folder in (function, *function.parents):
        if not _ADDRESS.fullmatch(folder.name):
            break
        link = _link(folder)
        if link is None:
            doubts.append(f"{folder.name} tells no link speed")
        elif link.gigatransfers_per_second == _SLOWEST == link.max_gigatransfers_per_second:
            doubts.append(f"{folder.name} says 2.5 GT/s at most, as virtual bridges do")
        else:
            links.append(link)
    if not links:
        why = "; ".join(doubts) or "no PCIe link"
        return PciPath(links=(), payload_bits_per_second=None, why=why)
    narrowest = min(links, key=lambda link: link.raw_bits_per_second)
    payload = _max_payload_bytes(function)
    efficiency = payload / (payload + _TLP_OVERHEAD_BYTES)
    speed = f"{narrowest.gigatransfers_per_second:g} GT/s x{narrowest.lanes}"
    return PciPath(
        links=tuple(links),
        payload_bits_per_second=narrowest.raw_bits_per_second * efficiency,
        why=f"{speed} at {narrowest.address}, {payload} B payload",
    )


def _link(folder: Path) -> Link | None:
    """None where the function has no PCIe link or does not know its speed."""
    speed, lanes = _speed(folder / "current_link_speed"), _lanes(folder / "current_link_width")
    if speed is None or lanes is None:
        return None
    return Link(
        address=folder.name,
        gigatransfers_per_second=speed,
        lanes=lanes,
        max_gigatransfers_per_second=_speed(folder / "max_link_speed"),
        max_lanes=_lanes(folder / "max_link_width"),
    )


def _speed(file: Path) -> float | None:
    found = _SPEED.match(sysfs.optional(file) or "")
    return float(found[1]) if found else None


def _lanes(file: Path) -> int | None:
    """None for 0 and 255 too, which functions without a link say."""
    found = sysfs.optional(file) or ""
    lanes = int(found) if found.isdigit() else 0
    return lanes if 0 < lanes <= 32 else None  # noqa: PLR2004  (the widest link there is)


def _max_payload_bytes(function: Path) -> int:
    """Of the device control register; the default where configuration space is not readable that far."""
    try:
        with (function / "config").open("rb") as file:
            config = file.read(_CONFIG_BYTES)
        offset = config[_CAPABILITIES]
        for _ in range(48):  # a capability has four bytes at least; a loop in the list ends here
            if offset < 0x40:  # noqa: PLR2004  (end of the list)
                break
            if config[offset] == _PCIE_CAPABILITY:
                return 128 << ((config[offset + _DEVICE_CONTROL] >> 5) & 0x7)
            offset = config[offset + 1]
    except (OSError, IndexError):
        pass
    return _DEFAULT_PAYLOAD_BYTES
