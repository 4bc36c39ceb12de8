"""Every active port has a GID that RDMA connections can use, and the one that jobs pin is a good one."""

import dataclasses

from probes import contract
from probes.readers import devices, gids, ports


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortGids:
    """The GID table of an active port.

    `pinned` is the index that the operator chose (NCCL_IB_GID_INDEX).
    """

    name: str
    device: str
    pci: str | None
    link_layer: str
    entries: tuple[gids.Gid, ...]
    pinned: int | None


class Limits(contract.Limits, frozen=True):
    """Which ports count."""

    ignore: tuple[str, ...] = ()
    """Devices (name or PCI address) or ports (`mlx5_4/2`) that no job uses."""


def read(host: contract.Host) -> tuple[PortGids, ...]:
    """The tables of all active ports; a port that is down has no addresses to judge."""
    return tuple(
        PortGids(
            name=port.name,
            device=device.name,
            pci=device.pci,
            link_layer=port.link_layer,
            entries=gids.read(host, device.name, port.number),
            pinned=host.gid_index if port.link_layer == "Ethernet" else None,
        )
        for device in devices.read(host)
        for port in ports.read(host, device)
        if port.active
    )


def judge(facts: tuple[PortGids, ...], limits: Limits) -> contract.Verdict:
    """One verdict per active port."""
    wanted = [one for one in facts if {one.name, one.device, one.pci}.isdisjoint(limits.ignore)]
    parts = [_judge_port(one) for one in wanted]
    return contract.together(
        parts,
        passed="GidsUsable",
        message="; ".join(part.message for part in parts),
        absent="no active RDMA port",
    )


def _judge_port(one: PortGids) -> contract.Verdict:
    chosen = gids.best(one.entries, one.link_layer, one.pinned)
    natural = gids.best(one.entries, one.link_layer)
    if chosen is None and one.pinned is not None and natural is not None:
        message = (
            f"{one.name}: the pinned GID index {one.pinned} is not set; {natural} would be used"
        )
        return _verdict(one, "GidIndexNotSet", message)
    if chosen is None:
        message = f"{one.name} has no GID: no address on its network device, or no subnet prefix"
        return _verdict(one, "NoUsableGid", message)
    warning, why = _warning(one, chosen, natural)
    return contract.Verdict(
        outcome=contract.Outcome.PASS,
        reason="GidUsable",
        message=f"{one.name} uses {chosen}{why}",
        part=one.name,
        warning=warning,
        values={"gid_index": float(chosen.index)},
    )


def _warning(one: PortGids, chosen: gids.Gid, natural: gids.Gid | None) -> tuple[str, str]:
    """What is poor about an entry, as a reason and as words."""
    if one.link_layer != "Ethernet":
        return "", ""
    if one.pinned is not None and natural is not None and chosen.index != natural.index:
        return "GidIndexPinned", f", pinned; {natural} would be the choice"
    if chosen.kind != gids.ROCE_V2:
        return "NoRoceV2Gid", ": RoCE v1 crosses no router"
    if chosen.link_local:
        return "GidLinkLocalOnly", ": link-local addresses cross no router"
    return "", ""


def _verdict(one: PortGids, reason: str, message: str) -> contract.Verdict:
    return contract.Verdict(
        outcome=contract.Outcome.FAIL, reason=reason, message=message, part=one.name
    )


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=60, deadline=15)
