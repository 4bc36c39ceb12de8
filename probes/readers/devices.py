"""RDMA devices as sysfs shows them, without opening one."""

import dataclasses
from pathlib import Path

from probes.contract import Host
from probes.readers import sysfs

INFINIBAND = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
# Device names begin with their driver's where no link says it (software devices have no bus).
_SOFTWARE_DRIVERS = {"rxe": "rdma_rxe", "siw": "siw"}
# node_type is `1: CA`, `4: RNIC` (iWARP), `6: Unspecified` (EFA), …


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An RDMA device. `pci` is its address (None for software RDMA), `driver` the kernel module
    that runs it, `uverbs` its character device (None where ib_uverbs gave it none) and `abi` the
    version of what it speaks with user space.
    """

    name: str
    driver: str
    software: bool
    pci: str | None
    pci_vendor_device: str
    node_type: str
    node_guid: str
    firmware: str
    board: str
    numa_node: int | None
    virtual_function: bool
    netdevs: tuple[str, ...]
    ports: tuple[int, ...]
    uverbs: str | None
    abi: int | None

    def is_any_of(self, names: tuple[str, ...]) -> bool:
        """Whether the device is named in a list of names and PCI addresses."""
        return self.name in names or (self.pci is not None and self.pci in names)


def names(host: Host) -> tuple[str, ...]:
    """Names of all devices in sysfs.

    Raises:
        Unreadable: the folder is there and can't be listed.
    """
    return sysfs.names(host.path(INFINIBAND))


def read(host: Host) -> tuple[Device, ...]:
    """All devices.

    Raises:
        Unreadable: a file of one of them is there and can't be read.
    """
    chars = _character_devices(host)
    return tuple(_device(host, name, *chars.get(name, (None, None))) for name in names(host))


def _device(host: Host, name: str, uverbs: str | None, abi: int | None) -> Device:
    folder = host.path(f"{INFINIBAND}/{name}")
    bus = folder / "device"
    on_bus = sysfs.exists(bus)
    return Device(
        name=name,
        driver=_driver(bus, name),
        software=not on_bus,
        pci=sysfs.link_name(bus) if on_bus else None,
        pci_vendor_device=_vendor_device(bus) if on_bus else "",
        node_type=(sysfs.optional(folder / "node_type") or "").partition(": ")[2],
        node_guid=sysfs.optional(folder / "node_guid") or "",
        firmware=sysfs.optional(folder / "fw_ver") or "",
        board=sysfs.optional(folder / "board_id") or "",
        numa_node=_numa_node(bus),
        virtual_function=sysfs.exists(bus / "physfn"),
        netdevs=_netdevs(folder, bus, on_bus=on_bus),
        ports=tuple(sorted(int(port) for port in sysfs.names(folder / "ports") if port.isdigit())),
        uverbs=uverbs,
        abi=abi,
    )


def _driver(bus: Path, name: str) -> str:
    named = sysfs.link_name(bus / "driver")
    if named:
        return sysfs.link_name(bus / "driver/module") or named
    prefix = name.rstrip("0123456789_")
    return _SOFTWARE_DRIVERS.get(prefix, "")


def _vendor_device(bus: Path) -> str:
    """`15b3:1021`, empty for a device that is on no PCI bus."""
    pair = (sysfs.optional(bus / "vendor"), sysfs.optional(bus / "device"))
    return ":".join(part.removeprefix("0x") for part in pair if part)


def _numa_node(bus: Path) -> int | None:
    """None where the kernel says -1: no NUMA, or firmware that does not tell."""
    path = bus / "numa_node"
    found = sysfs.number(path) if sysfs.exists(path) else -1
    return found if found >= 0 else None


def _netdevs(folder: Path, bus: Path, *, on_bus: bool) -> tuple[str, ...]:
    """Network devices of the same function; for software RDMA the one it was put on."""
    if on_bus:
        return sysfs.names(bus / "net")
    parent = sysfs.optional(folder / "parent")
    return (parent,) if parent else ()


def _character_devices(host: Host) -> dict[str, tuple[str, int | None]]:
    """Device name → (`uverbs0`, ABI version)."""
    found: dict[str, tuple[str, int | None]] = {}
    folder = host.path(_VERBS)
    for entry in sysfs.names(folder):
        owner = folder / entry / "ibdev"
        if sysfs.exists(owner):
            abi = folder / entry / "abi_version"
            found[sysfs.value(owner)] = (entry, sysfs.number(abi) if sysfs.exists(abi) else None)
    return found
