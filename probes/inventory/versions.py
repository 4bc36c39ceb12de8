"""Versions of kernel, RDMA stack, firmware and GPU driver are known, fit together, and are ones that were approved."""

from collections.abc import Iterator

from probes import contract
from probes.readers import versions


class Limits(contract.Limits, frozen=True):
    """Approved versions, compared as text; none approved means that every one is."""

    kernel: tuple[str, ...] = ()
    """Kernel releases (`uname -r`)."""
    rdma_stack: tuple[str, ...] = ()
    """`inbox` or `OFED VERSION`."""
    firmware: tuple[str, ...] = ()
    """Firmware versions of RDMA devices; software RDMA (0.0.0) is not compared."""
    gpu_driver: tuple[str, ...] = ()
    """Versions of the nvidia kernel module."""


_SOFTWARE_FIRMWARE = "0.0.0"


def judge(facts: versions.Versions, limits: Limits) -> contract.Verdict:
    """A mismatch inside the GPU's driver first, then what is not approved."""
    module, library = facts.gpu_driver, facts.gpu_library
    if module and library and module != library:
        message = f"nvidia kernel module {module}, but its library says {library}: reload the module or reboot"
        return _verdict(contract.Outcome.FAIL, "DriverLibraryMismatch", message, facts)
    problems = list(_not_approved(facts, limits))
    if problems:
        return _verdict(contract.Outcome.FAIL, "VersionNotApproved", "; ".join(problems), facts)
    words = f"kernel {facts.kernel}, RDMA stack {facts.rdma_stack}"
    return _verdict(contract.Outcome.PASS, "VersionsKnown", words, facts)


def _not_approved(facts: versions.Versions, limits: Limits) -> Iterator[str]:
    """One line for each version that a list does not have."""
    found = [("kernel", "kernel", facts.kernel), ("RDMA stack", "rdma_stack", facts.rdma_stack)]
    found += [
        (f"firmware of {device}", "firmware", version)
        for device, version in facts.firmware
        if version != _SOFTWARE_FIRMWARE
    ]
    if facts.gpu_driver:
        found.append(("GPU driver", "gpu_driver", facts.gpu_driver))
    for what, field, version in found:
        approved: tuple[str, ...] = getattr(limits, field)
        if approved and version not in approved:
            source = limits.origin(field)
            yield f"{what} is {version or 'not told'}, approved: {', '.join(approved)} ({source})"


def _verdict(
    outcome: contract.Outcome, reason: str, message: str, facts: versions.Versions
) -> contract.Verdict:
    notes = {
        "kernel": facts.kernel,
        "rdma_stack": facts.rdma_stack,
        "libibverbs": facts.libibverbs,
        "gpu_driver": facts.gpu_driver,
        "cuda": facts.cuda,
        **{f"firmware_{device}": version for device, version in facts.firmware},
    }
    said = {name: version for name, version in notes.items() if version}
    return contract.Verdict(outcome=outcome, reason=reason, message=message, notes=said)


PROBE = contract.Probe(read=versions.read, judge=judge, limits=Limits, every=3600, deadline=20)
