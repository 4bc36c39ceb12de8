"""Every fabric port is active, of the right link layer and speed, and managed, as the kernel says it now."""

import dataclasses
from typing import Annotated, Literal

import msgspec

from probes import contract
from probes.readers import devices, ports

_SMALL_MTU_BYTES = 1024
_GIGA = 1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """A port, and whose it is."""

    port: ports.Port
    pci: str | None
    software: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The ports that are here, and those (`mlx5_0/1`) that were well earlier in this boot."""

    found: tuple[PortFacts, ...]
    seen: tuple[str, ...]


class Limits(contract.Limits, frozen=True):
    """What the ports of a node must be."""

    ignore: tuple[str, ...] = ()
    """Devices (name or PCI address) or ports (`mlx5_4/2`) that no job uses."""
    require_up: Literal["all", "any"] = "all"
    """`any` where spare ports are left without a cable."""
    link_layer: Literal["InfiniBand", "Ethernet"] | None = None
    """None takes what is there."""
    minimum_gigabits_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Data rate below which a port was negotiated down. None does not judge it here; the loopback does."""


def read(host: contract.Host) -> Facts:
    """All ports of all devices."""
    found = tuple(
        PortFacts(port=port, pci=device.pci, software=device.software)
        for device in devices.read(host)
        for port in ports.read(host, device)
    )
    return Facts(found=found, seen=host.seen)


def judge(facts: Facts, limits: Limits) -> contract.Verdict:
    """One verdict per port, and per port that is gone."""
    wanted = [
        one
        for one in facts.found
        if {one.port.device, one.port.name, one.pci}.isdisjoint(limits.ignore)
    ]
    spare = limits.require_up == "any" and any(one.port.active for one in wanted)
    parts = [_judge_port(one, limits, may_be_down=spare) for one in wanted]
    here = {one.port.name for one in facts.found}
    parts += [
        _gone(name)
        for name in facts.seen
        if name not in here and {name, name.rpartition("/")[0]}.isdisjoint(limits.ignore)
    ]
    active = [one.port.name for one in wanted if one.port.active]
    return contract.together(
        parts,
        passed="PortsActive",
        message=f"active: {', '.join(active)}",
        absent="no RDMA port to look at",
    )


def _judge_port(one: PortFacts, limits: Limits, *, may_be_down: bool) -> contract.Verdict:
    port = one.port
    if not port.active:
        return _inactive(port, may_be_down=may_be_down)
    if limits.link_layer and port.link_layer != limits.link_layer:
        source = limits.origin("link_layer")
        message = f"{port.name} is {port.link_layer}, expected {limits.link_layer} ({source})"
        return _verdict(port, contract.Outcome.FAIL, "LinkLayerMismatch", message)
    if port.link_layer == "InfiniBand" and not port.sm_lid:
        message = f"{port.name} is active without a subnet manager (SM LID 0)"
        return _verdict(port, contract.Outcome.FAIL, "NoSubnetManager", message)
    rate, least = port.data_bits_per_second, limits.minimum_gigabits_per_second
    if least is not None and rate is not None and rate < least * _GIGA:
        source = limits.origin("minimum_gigabits_per_second")
        message = f"{port.name} runs at {rate / _GIGA:g} Gb/s ({port.rate_why}), expected {least:g} ({source})"
        return dataclasses.replace(
            _verdict(port, contract.Outcome.FAIL, "RateBelowExpected", message),
            kind=contract.Kind.PERFORMANCE,
        )
    return dataclasses.replace(
        _verdict(port, contract.Outcome.PASS, "PortActive", _summary(port)),
        warning=_warning(one),
        values={} if rate is None else {"rate_bits_per_second": rate},
    )


def _gone(name: str) -> contract.Verdict:
    message = f"{name} was active earlier in this boot, and is not there any more"
    return contract.Verdict(
        outcome=contract.Outcome.FAIL, reason="PortLost", message=message, part=name
    )


def _inactive(port: ports.Port, *, may_be_down: bool) -> contract.Verdict:
    """Not ACTIVE: down, or up and waiting for someone to configure it."""
    state = f"{port.name} is {port.state} (physical state {port.phys_state})"
    if port.state in {"INIT", "ARMED"}:
        cause = (
            "no subnet manager has configured it"
            if port.link_layer == "InfiniBand"
            else "not ready"
        )
        return _verdict(port, contract.Outcome.FAIL, "PortInitializing", f"{state}: {cause}")
    if may_be_down:
        return _verdict(port, contract.Outcome.SKIP, "PortSpare", f"{state}; spare ports may be")
    return _verdict(port, contract.Outcome.FAIL, "PortDown", f"{state}, {port.link_layer}")


def _warning(one: PortFacts) -> str:
    if one.port.mtu_bytes is not None and one.port.mtu_bytes <= _SMALL_MTU_BYTES:
        return "SmallMtu"
    if one.port.data_bits_per_second is None and not one.software:
        return "RateUnknown"
    return ""


def _summary(port: ports.Port) -> str:
    rate = port.data_bits_per_second
    speed = f"rate unknown: {port.rate_why}" if rate is None else f"{rate / _GIGA:g} Gb/s"
    mtu = f", RDMA MTU {port.mtu_bytes} (netdev {port.netdev_mtu})" if port.mtu_bytes else ""
    return f"{port.name} {port.link_layer} {port.phys_state}, {speed}{mtu}"


def _verdict(
    port: ports.Port, outcome: contract.Outcome, reason: str, message: str
) -> contract.Verdict:
    return contract.Verdict(outcome=outcome, reason=reason, message=message, part=port.name)


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=30, deadline=15)
