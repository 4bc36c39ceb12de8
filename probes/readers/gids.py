"""GID tables: which addresses a port has, and which one RDMA connections would use."""

import dataclasses
import ipaddress
from pathlib import Path

from probes.contract import Host, Unreadable
from probes.readers import sysfs

# Tables have 16 to 256 entries; more is not a table.
_MAX_ENTRIES = 1024
ROCE_V1 = "IB/RoCE v1"
ROCE_V2 = "RoCE v2"
_EMPTY = ("0000:0000:0000:0000:0000:0000:0000:0000", "")
_LINK_LOCAL_IPV4 = ipaddress.IPv4Network("169.254.0.0/16")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """An entry of a port's GID table: `kind` is `RoCE v2` or `IB/RoCE v1`, `netdev` its network device."""

    index: int
    address: ipaddress.IPv6Address
    kind: str
    netdev: str | None

    @property
    def ipv4(self) -> bool:
        """Whether it stands for an IPv4 address."""
        return self.address.ipv4_mapped is not None

    @property
    def link_local(self) -> bool:
        """Whether no router forwards it."""
        mapped = self.address.ipv4_mapped
        return mapped in _LINK_LOCAL_IPV4 if mapped else self.address.is_link_local

    def __str__(self) -> str:
        """`index 3 (RoCE v2, 10.1.2.3)`."""
        return f"index {self.index} ({self.kind}, {self.address.ipv4_mapped or self.address})"


def read(host: Host, device: str, port: int) -> tuple[Gid, ...]:
    """Entries of a port's table that are set.

    Raises:
        Unreadable: there is no table, or an entry that is set can't be read.
    """
    folder = host.path(f"/sys/class/infiniband/{device}/ports/{port}")
    if not sysfs.exists(folder / "gids"):
        raise Unreadable(folder / "gids", "is missing, and every port has one")
    indexes = sorted(int(name) for name in sysfs.names(folder / "gids") if name.isdigit())
    found = []
    for index in indexes[:_MAX_ENTRIES]:
        entry = _entry(folder, index)
        if entry is not None:
            found.append(entry)
    return tuple(found)


def _entry(folder: Path, index: int) -> Gid | None:
    """None for an entry that is not set: all zeros, or a kind that the kernel refuses to tell (EINVAL)."""
    path = folder / f"gids/{index}"
    address = sysfs.text(path)
    if address in _EMPTY:
        return None
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError as error:
        raise Unreadable(path, f"is not a GID: {address[:60]!r}") from error
    return Gid(
        index=index,
        address=parsed,
        kind=_attribute(folder, "types", index) or ROCE_V1,
        netdev=_attribute(folder, "ndevs", index),
    )


def _attribute(folder: Path, name: str, index: int) -> str | None:
    """A file of `gid_attrs`; on InfiniBand it is absent or EINVAL."""
    try:
        return sysfs.text(folder / f"gid_attrs/{name}/{index}") or None
    except Unreadable:
        return None


def first_netdev(port_folder: Path) -> str | None:
    """The network device of the first entry that has one; entries are set in order, so the first few suffice."""
    for index in range(4):
        found = _attribute(port_folder, "ndevs", index)
        if found:
            return found
    return None


def best(entries: tuple[Gid, ...], link_layer: str, override: int | None = None) -> Gid | None:
    """The entry that a connection should use: the operator's, else the best by NCCL's own order.

    RoCE: v2 before v1, routable before link-local, IPv4 before IPv6, and then the lowest index.
    InfiniBand: index 0.
    """
    if override is not None:
        return next((entry for entry in entries if entry.index == override), None)
    if link_layer == "InfiniBand":
        return next((entry for entry in entries if entry.index == 0), None)
    return max(entries, key=_score, default=None)


def _score(entry: Gid) -> tuple[bool, bool, bool, int]:
    return (entry.kind == ROCE_V2, not entry.link_local, entry.ipv4, -entry.index)
