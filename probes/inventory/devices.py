"""The RDMA devices that should be here are here, and verbs list what sysfs shows."""

import dataclasses
from typing import Annotated

import msgspec

from probes import contract
from probes.readers import devices, nics, verbs

_NO_DEVICE = "no RDMA device: /sys/class/infiniband is empty or missing, so distributed work would fall back to TCP"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Devices in sysfs and the names that verbs list.

    `listed` is None where verbs were not asked (a captured tree) or could not answer, and then
    `not_listed` says why; `no_verbs` is true where the kernel has none. `seen` were here earlier in
    this boot, `idle_nics` are NICs that could do RDMA and have no RDMA device.
    """

    found: tuple[devices.Device, ...]
    listed: tuple[str, ...] | None
    not_listed: str
    no_verbs: bool
    idle_nics: tuple[nics.Nic, ...]
    seen: tuple[str, ...] = ()


class Limits(contract.Limits, frozen=True):
    """What a node of this kind has."""

    rdma_devices: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many RDMA devices a node has, without the ignored ones. None does not count them: one is enough."""
    ignore: tuple[str, ...] = ()
    """Devices (name or PCI address) that no job uses."""


def read(host: contract.Host) -> Facts:
    """Looks at both sides."""
    found = devices.read(host)
    listed, why, no_verbs = _listed(host)
    return Facts(
        found=found,
        listed=listed,
        not_listed=why,
        no_verbs=no_verbs,
        idle_nics=nics.without_rdma(host),
        seen=host.seen,
    )


def _listed(host: contract.Host) -> tuple[tuple[str, ...] | None, str, bool]:
    if not host.live:
        return None, "", False
    try:
        return verbs.device_names(), "", False
    except verbs.NoVerbs as error:
        return None, str(error), True
    except contract.Unreadable as error:
        return None, str(error), False


def judge(facts: Facts, limits: Limits) -> contract.Verdict:
    """What is missing comes first, then what the two sides see differently."""
    wanted = [device for device in facts.found if not device.is_any_of(limits.ignore)]
    names = tuple(device.name for device in wanted)
    missing = _missing(facts, limits, names)
    if missing is not None:
        return missing
    if not names:
        return _verdict(
            contract.Outcome.SKIP, "NoRdmaExpected", "no RDMA device, and none expected"
        )
    if facts.no_verbs:
        message = f"sysfs shows {', '.join(names)} but {facts.not_listed}"
        return _verdict(contract.Outcome.FAIL, "VerbsUnavailable", message)
    if facts.not_listed:
        message = (
            f"sysfs shows {', '.join(names)} but they could not be compared: {facts.not_listed}"
        )
        return _verdict(contract.Outcome.UNKNOWN, "VerbsUnreadable", message)
    if facts.listed is not None:
        mismatch = _mismatch(names, {device.name for device in facts.found}, facts.listed)
        if mismatch:
            return _verdict(contract.Outcome.FAIL, "VerbsMismatch", mismatch)
    return _present(wanted, limits)


def _missing(facts: Facts, limits: Limits, names: tuple[str, ...]) -> contract.Verdict | None:
    hint = _hint(facts.idle_nics)
    expected = limits.rdma_devices
    if not names and expected != 0:
        return _verdict(contract.Outcome.FAIL, "NoRdmaDevice", _NO_DEVICE + hint)
    here = {identity(device) for device in facts.found}
    lost = [one for one in facts.seen if one not in here and one not in limits.ignore]
    if lost:
        message = f"{', '.join(lost)} was here earlier in this boot and is gone{hint}"
        return _verdict(contract.Outcome.FAIL, "RdmaDeviceLost", message)
    if expected is not None and len(names) < expected:
        source = limits.origin("rdma_devices")
        message = (
            f"{len(names)} RDMA devices ({', '.join(names)}), expected {expected} ({source}){hint}"
        )
        return _verdict(contract.Outcome.FAIL, "RdmaDeviceMissing", message)
    return None


def _hint(idle: tuple[nics.Nic, ...]) -> str:
    if not idle:
        return ""
    which = ", ".join(nic.pci for nic in idle)
    drivers = ", ".join(sorted({nic.rdma_module for nic in idle}))
    return f"; {which} could do RDMA and have no RDMA device: is {drivers} loaded?"


def _mismatch(names: tuple[str, ...], in_sysfs: set[str], listed: tuple[str, ...]) -> str:
    """How verbs differ from sysfs, empty where they agree."""
    hidden = [name for name in names if name not in listed]
    if hidden:
        return (
            f"verbs do not list {', '.join(hidden)}, which sysfs shows: the provider library is missing or too old "
            "for the kernel, or the device is in another network namespace"
        )
    strange = [name for name in listed if name not in in_sysfs]
    return f"verbs list {', '.join(strange)}, which sysfs does not show" if strange else ""


def _present(wanted: list[devices.Device], limits: Limits) -> contract.Verdict:
    parts = tuple(_part(one) for one in wanted)
    words = ", ".join(part.message for part in parts)
    more = limits.rdma_devices is not None and len(wanted) > limits.rdma_devices
    verdict = _verdict(contract.Outcome.PASS, "DevicesPresent", words)
    return dataclasses.replace(
        verdict,
        warning="RdmaDeviceUnexpected" if more else "",
        values={"rdma_devices": float(len(wanted))},
        parts=parts,
    )


def identity(device: devices.Device) -> str:
    """What names a device for the length of a boot, renamed or not: its place on the bus."""
    return device.pci or device.name


def _part(device: devices.Device) -> contract.Verdict:
    message = f"{device.name} ({device.driver or 'unknown driver'})"
    verdict = _verdict(contract.Outcome.PASS, "DevicePresent", message)
    return dataclasses.replace(verdict, part=identity(device))


def _verdict(outcome: contract.Outcome, reason: str, message: str) -> contract.Verdict:
    return contract.Verdict(outcome=outcome, reason=reason, message=message)


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=300, deadline=15)
