"""Each port moves bytes to itself over RDMA, intact, counted, and at the rate that its hardware
should give.

Two queue pairs on the port write to and read from each other. All of the destination is compared
with a pattern made for this run, so a stack that completes work without doing it fails. The rate is
judged against the smaller of port and PCIe path; a port with a job on it is spared the measurement
and says so (`bandwidth: deferred`).
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from probes import contract
from probes.loopback import _expectation, _run
from probes.readers import payload, transfer

# Packets of rxe's counter are witnesses when they account for so much of the payload.
_WITNESS_SHARE = 0.95
_ENOMEM = 12
_RETRY_EXCEEDED = 12
_REMOTE_ACCESS = 10
_GIGA = 1e9


class Limits(contract.Limits, frozen=True):
    """What a loopback must reach."""

    ignore: tuple[str, ...] = ()
    """Devices (name or PCI address) or ports (`mlx5_4/2`) that no job uses: moved over, not judged."""
    software_rdma: Literal["forbid", "allow"] = "forbid"
    """rxe and siw move bytes through the kernel's IP stack; a node that relies on them has no fabric."""
    expected_gigabits_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Takes the place of the expectation that comes from port rate and PCIe path."""
    fail_below_percent: contract.Percent = 90.0
    warn_below_percent: contract.Percent = 95.0


def judge(facts: tuple[_run.PortRun, ...], limits: Limits) -> contract.Verdict:
    """One verdict per port that jobs may use."""
    ports = [run for run in facts if {run.device, run.pci, run.name}.isdisjoint(limits.ignore)]
    if ports and not any(run.active for run in ports):
        names = ", ".join(run.name for run in ports)
        return _verdict("fail", "NoActivePort", f"no port is active, so no bytes can move: {names}")
    parts = [_judge_port(run, limits) for run in ports]
    return contract.together(
        parts,
        passed="LoopbackPassed",
        message="; ".join(part.message for part in parts),
        absent="no RDMA port to move bytes through",
    )


def _judge_port(run: _run.PortRun, limits: Limits) -> contract.Verdict:
    """Mechanics first: what did not arrive has no rate."""
    if not run.active:
        return _verdict("skip", "PortNotActive", f"{run.name} is {run.state}", run)
    if run.no_rc:
        message = f"{run.name} has no RC queue pairs ({run.no_rc})"
        if run.moved_before:
            return _verdict("fail", "NotRcCapable", f"{message}, and had earlier in this boot", run)
        return _verdict("skip", "NotRcCapable", message, run)
    if run.software and limits.software_rdma == "forbid":
        message = f"{run.name} is software RDMA ({run.driver}): bytes go through the kernel's IP stack, not a fabric"
        return _verdict("fail", "SoftwareRDMA", message, run)
    if run.failure is not None:
        return _judge_failure(run, run.failure)
    if run.corrupted:
        return _verdict("fail", "DataCorrupted", f"{run.name}: {run.corrupted}", run)
    witness = _witness(run)
    if witness == "absent":
        message = f"{run.name}: transfers completed, but the device counted only {_counted(run):.0%} of the bytes"
        return _verdict("fail", "NotWitnessed", message, run)
    notes = {"witness": witness, "gid": run.gid}
    if run.blind:
        message = f"{run.name} moved bytes intact, and was not measured: {run.busy}"
        return _verdict("unknown", "UseUnreadable", message, run, notes=notes)
    if run.measured is None:
        message = f"{run.name} moved bytes intact; bandwidth deferred: {run.busy}"
        return _verdict(
            "pass", "LoopbackPassed", message, run, notes={**notes, "bandwidth": "deferred"}
        )
    return _judge_rate(run, run.measured, limits, notes)


def _judge_failure(run: _run.PortRun, failure: transfer.Failure) -> contract.Verdict:
    """Which layer refused, in words that say what to look at."""
    message = f"{run.name}: {failure.step}: {failure.why}{run.aftermath}"
    if failure.step == "memory" and failure.code == _ENOMEM:
        message += "; raise the locked-memory limit (RLIMIT_MEMLOCK) or grant CAP_IPC_LOCK"
        return _verdict("fail", "MemoryNotRegistered", message, run)
    reasons: Mapping[str, str] = {
        "open": "DeviceNotOpened",
        "memory": "MemoryNotRegistered",
        "queue": "QueuePairRefused",
        "connect": "QueuePairNotConnected",
        "post": "PostRefused",
    }
    completions: Mapping[int, str] = {
        transfer.OPERATION_TIMED_OUT: "TransferTimedOut",
        _RETRY_EXCEEDED: "RetriesExceeded",
        _REMOTE_ACCESS: "RemoteAccessRefused",
    }
    reason = reasons.get(failure.step) or completions.get(failure.code, "TransferFailed")
    return _verdict("fail", reason, message, run)


def _judge_rate(
    run: _run.PortRun, measured: transfer.Measured, limits: Limits, notes: Mapping[str, str]
) -> contract.Verdict:
    expected = _expected(run, limits)
    rate = measured.bits_per_second
    notes = {**notes, "expectation": expected.source}
    values = {
        "measured_bits_per_second": rate,
        "moved_bytes": float(measured.payload_bytes),
        "moved_seconds": measured.seconds,
    }
    if expected.bits_per_second is None:
        message = (
            f"{run.name} moved {_gigabits(rate)} but nothing says what it should: {expected.source}"
        )
        return _verdict("unknown", "NoExpectation", message, run, values=values, notes=notes)
    percent = 100 * rate / expected.bits_per_second
    values |= {"expected_bits_per_second": expected.bits_per_second}
    share = f"{percent:.3g} % of {_gigabits(expected.bits_per_second)} ({expected.source})"
    message = f"{run.name} moved {_gigabits(rate)}, {share}"
    if percent < limits.fail_below_percent:
        return _verdict(
            "fail",
            "LoopbackSlow",
            message,
            run,
            kind=contract.Kind.PERFORMANCE,
            values=values,
            notes=notes,
        )
    warning = "LoopbackBelowExpected" if percent < limits.warn_below_percent else ""
    return _verdict(
        "pass", "LoopbackPassed", message, run, warning=warning, values=values, notes=notes
    )


def _expected(run: _run.PortRun, limits: Limits) -> _expectation.Expectation:
    given = limits.expected_gigabits_per_second
    if given is not None:
        source = limits.origin("expected_gigabits_per_second")
        return _expectation.Expectation(bits_per_second=given * _GIGA, source=source)
    if run.software:
        why = "software RDMA has no rate of its own: set expected_gigabits_per_second"
        return _expectation.Expectation(bits_per_second=None, source=why)
    return _expectation.of_hardware(
        port_bits_per_second=run.port_bits_per_second,
        port_why=run.port_why,
        transport=run.transport,
        mtu_bytes=run.mtu_bytes,
        pcie_bits_per_second=run.pcie_bits_per_second,
        pcie_why=run.pcie_why,
    )


def _counted(run: _run.PortRun) -> float:
    """Payload share that the device's all-packets counter accounts for; NaN where it has none."""
    if (
        run.before is None
        or run.after is None
        or run.before.packets is None
        or run.after.packets is None
    ):
        return float("nan")
    return (run.after.packets - run.before.packets) * run.mtu_bytes / max(1, run.witnessed_bytes)


def _witness(run: _run.PortRun) -> str:
    """`full`, `partial` (no counter that must move in a loopback) or `absent` (it is there and did not move)."""
    counted = _counted(run)
    if counted >= _WITNESS_SHARE:
        return "full"
    if counted < _WITNESS_SHARE:  # false for NaN
        return "absent"
    before, after = run.before, run.after
    if before is None or after is None:
        return "partial"
    # Wire counters move in a loopback on some HCAs only, and with everyone's traffic: they can
    # speak for a run, not against.
    moved = [
        (after.transmitted_bytes or 0) - (before.transmitted_bytes or 0),
        ((after.write_requests or 0) - (before.write_requests or 0)) * payload.SLOT_BYTES,
    ]
    return "full" if max(moved) >= _WITNESS_SHARE * run.witnessed_bytes else "partial"


def _gigabits(bits_per_second: float) -> str:
    return f"{bits_per_second / _GIGA:.4g} Gb/s"


def _verdict(
    outcome: str,
    reason: str,
    message: str,
    run: _run.PortRun | None = None,
    *,
    kind: contract.Kind = contract.Kind.MECHANICS,
    warning: str = "",
    values: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> contract.Verdict:
    return contract.Verdict(
        outcome=contract.Outcome(outcome),
        reason=reason,
        message=message,
        part=run.name if run else "",
        kind=kind,
        warning=warning,
        values=values or {},
        notes=notes or {},
    )


PROBE = contract.Probe(
    read=_run.read, judge=judge, limits=Limits, every=6 * 3600, deadline=120, moves_data=True
)
