"""The GPUs that PCI shows answer through NVIDIA's library, and there are as many as there should be."""

import dataclasses
from typing import Annotated

import msgspec

from probes import contract
from probes.readers import gpus, nvml


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """GPUs by PCI and by NVML; `seen` is None where the library could not be used, and then `unseen` says why."""

    on_pci: tuple[str, ...]
    driver_loaded: bool
    seen: nvml.Nvml | None
    unseen: str
    mismatch: bool
    earlier: tuple[str, ...] = ()
    """PCI addresses of GPUs that answered earlier in this boot."""


class Limits(contract.Limits, frozen=True):
    """What a node of this kind has."""

    gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How many GPUs a node has. None takes what PCI shows, and a node without any is skipped."""


def read(host: contract.Host) -> Facts:
    """Looks at PCI, and asks NVML on a live machine that has GPUs."""
    on_pci = gpus.on_pci(host)
    seen, unseen, mismatch = _ask(host, on_pci)
    return Facts(
        on_pci=on_pci,
        driver_loaded=gpus.driver_version(host) is not None,
        seen=seen,
        unseen=unseen,
        mismatch=mismatch,
        earlier=host.seen,
    )


def _ask(host: contract.Host, on_pci: tuple[str, ...]) -> tuple[nvml.Nvml | None, str, bool]:
    """The library is loaded where there is something to ask about, and only there."""
    if not on_pci:
        return None, "PCI shows no GPU", False
    if not host.live:
        return None, f"{host.root} is a captured tree", False
    try:
        return nvml.read(), "", False
    except contract.Unreadable as error:
        return None, str(error), isinstance(error, nvml.DriverMismatch)


def judge(facts: Facts, limits: Limits) -> contract.Verdict:
    """Counts first, then each GPU."""
    expected = limits.gpus
    if expected is not None and len(facts.on_pci) < expected:
        source = limits.origin("gpus")
        message = f"PCI shows {len(facts.on_pci)} GPUs, expected {expected} ({source})"
        return _verdict(contract.Outcome.FAIL, "GpuMissing", message)
    gone = [address for address in facts.earlier if address not in facts.on_pci]
    if gone:
        message = f"GPU {', '.join(gone)} answered earlier in this boot and is off the bus"
        return _verdict(contract.Outcome.FAIL, "GpuLost", message)
    if not facts.on_pci:
        return _verdict(contract.Outcome.SKIP, "NoGpu", "no GPU on PCI")
    count = len(facts.on_pci)
    if not facts.driver_loaded:
        message = f"PCI shows {count} GPUs but the nvidia kernel module is not loaded"
        return _verdict(contract.Outcome.FAIL, "GpuDriverMissing", message)
    if facts.mismatch:
        return _verdict(contract.Outcome.FAIL, "DriverLibraryMismatch", facts.unseen)
    if facts.seen is None:
        message = f"PCI shows {count} GPUs but they can't be asked: {facts.unseen}"
        return _verdict(contract.Outcome.UNKNOWN, "NvmlUnavailable", message)
    return _judge_seen(facts.on_pci, facts.seen, limits)


def _judge_seen(on_pci: tuple[str, ...], seen: nvml.Nvml, limits: Limits) -> contract.Verdict:
    found = _placed(on_pci, seen.gpus)
    parts = [_judge_gpu(gpu) for gpu in found]
    if len(found) < len(on_pci):
        shown = {gpu.pci for gpu in found}
        parts += [_judge_missing(pci) for pci in on_pci if pci not in shown]
    names = ", ".join(sorted({gpu.name for gpu in found if gpu.name}))
    verdict = contract.together(
        parts,
        passed="GpusPresent",
        message=f"{len(found)} GPUs answer ({names})",
        absent="NVML shows no GPU",
    )
    more = limits.gpus is not None and len(on_pci) > limits.gpus
    if more and verdict.outcome is contract.Outcome.PASS:
        return dataclasses.replace(verdict, warning="GpuUnexpected")
    return verdict


def _placed(on_pci: tuple[str, ...], found: tuple[nvml.Gpu, ...]) -> tuple[nvml.Gpu, ...]:
    """GPUs with the address that NVML could not tell, where only one way to fill it in is left: NVML
    counts in the order of addresses.
    """
    free = [pci for pci in on_pci if pci not in {gpu.pci for gpu in found}]
    if len(free) != sum(not gpu.pci for gpu in found):
        return found
    left = iter(free)
    return tuple(gpu if gpu.pci else dataclasses.replace(gpu, pci=next(left)) for gpu in found)


_STATES = {
    nvml.State.ANSWERS: (contract.Outcome.PASS, "GpuPresent"),
    nvml.State.LOST: (contract.Outcome.FAIL, "GpuLost"),
    nvml.State.NEEDS_RESET: (contract.Outcome.FAIL, "GpuResetRequired"),
    nvml.State.SILENT: (contract.Outcome.UNKNOWN, "GpuUnreadable"),
}


def _judge_gpu(gpu: nvml.Gpu) -> contract.Verdict:
    part = gpu.pci or f"GPU {gpu.index}"
    outcome, reason = _STATES[gpu.state]
    words = f": {gpu.problem}" if gpu.problem else f" {gpu.name} {gpu.uuid}".rstrip()
    return _verdict(outcome, reason, f"{part}{words}", part)


def _judge_missing(pci: str) -> contract.Verdict:
    message = f"{pci}: is on PCI and NVML does not show it"
    return _verdict(contract.Outcome.FAIL, "GpuLost", message, pci)


def _verdict(
    outcome: contract.Outcome, reason: str, message: str, part: str = ""
) -> contract.Verdict:
    return contract.Verdict(outcome=outcome, reason=reason, message=message, part=part)


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=300, deadline=20)
