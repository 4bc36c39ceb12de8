"""Programs can reach every device: kernel modules loaded, device node there and allowed, provider library installed."""

import dataclasses

from probes import contract
from probes.readers import devices, sysfs, userspace

_UVERBS = "ib_uverbs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Devices with their access, and whether ib_uverbs is loaded."""

    uverbs_loaded: bool
    found: tuple[tuple[devices.Device, userspace.Access], ...]


class Limits(contract.Limits, frozen=True):
    """Which devices count."""

    ignore: tuple[str, ...] = ()
    """Devices (name or PCI address) that no job uses."""


def read(host: contract.Host) -> Facts:
    """Opens each device's node once and closes it."""
    return Facts(
        uverbs_loaded=sysfs.exists(host.path(f"/sys/module/{_UVERBS}")),
        found=tuple((device, userspace.access(host, device)) for device in devices.read(host)),
    )


def judge(facts: Facts, limits: Limits) -> contract.Verdict:
    """One verdict per device."""
    parts = [
        _judge_device(facts, device, access)
        for device, access in facts.found
        if not device.is_any_of(limits.ignore)
    ]
    return contract.together(
        parts,
        passed="DevicesReachable",
        message="; ".join(part.message for part in parts),
        absent="no RDMA device",
    )


def _judge_device(
    facts: Facts, device: devices.Device, access: userspace.Access
) -> contract.Verdict:
    name = device.name
    if not facts.uverbs_loaded:
        return _fail(
            name, "ModuleMissing", f"{name}: module {_UVERBS} is not loaded: modprobe {_UVERBS}"
        )
    if access.node is None:
        message = f"{name} has no uverbs device: its driver ({device.driver}) did not register with {_UVERBS}"
        return _fail(name, "UverbsMissing", message)
    if access.refused == "No such file or directory":
        return _fail(
            name, "DeviceNodeMissing", f"{name}: {access.node} does not exist: is udev running?"
        )
    if access.refused:
        message = f"{name}: {access.node} can't be opened: {access.refused} (device cgroup or permissions)"
        return _fail(name, "DeviceNodeForbidden", message)
    if access.provider is None:
        message = f"{name}: no libibverbs provider for {device.driver}: install ibverbs-providers"
        return _fail(name, "ProviderMissing", message)
    notes = {"driver": device.driver, "provider": access.provider} if access.provider else {}
    return contract.Verdict(
        outcome=contract.Outcome.PASS,
        reason="DeviceReachable",
        message=f"{name} by {device.driver or 'an unnamed driver'} at {access.node}",
        part=name,
        values={} if device.abi is None else {"kernel_abi": float(device.abi)},
        notes=notes,
    )


def _fail(name: str, reason: str, message: str) -> contract.Verdict:
    return contract.Verdict(
        outcome=contract.Outcome.FAIL, reason=reason, message=message, part=name
    )


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=300, deadline=10)
