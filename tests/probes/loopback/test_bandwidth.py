"""What a loopback's facts mean: every way to fail has its reason, and nothing passes that was not moved."""

import dataclasses
from typing import Any

import pytest

from probes.contract import Kind, Outcome, Verdict
from probes.loopback import bandwidth
from probes.loopback._run import PortRun
from probes.readers.counters import Snapshot
from probes.readers.transfer import Failure, Measured

GIGA = 10**9
MEGA = 1 << 20


def snapshot(**changes: int | None) -> Snapshot:
    """Counters; None for those that a device does not have."""
    fields: dict[str, Any] = {
        "taken": 0.0,
        "transmitted_bytes": None,
        "received_bytes": None,
        "packets": None,
        "write_requests": None,
        "tcp_segments": 0,
    }
    return Snapshot(**{**fields, **changes})


def port(**changes: Any) -> PortRun:
    """A 400 Gb/s InfiniBand port that moved 1 GiB at 390 Gb/s, on a device without counters of its loopback."""
    fields: dict[str, Any] = {
        "device": "mlx5_0",
        "port": 1,
        "driver": "mlx5_core",
        "pci": "0000:1a:00.0",
        "software": False,
        "active": True,
        "state": "ACTIVE, LinkUp",
        "gid": "index 0",
        "transport": "InfiniBand",
        "mtu_bytes": 4096,
        "port_bits_per_second": 400.0 * GIGA,
        "port_why": "rate 400 Gb/sec (4X NDR)",
        "pcie_bits_per_second": 458.0 * GIGA,
        "pcie_why": "32 GT/s x16",
        "measured": measured(390),
        "before": snapshot(),
        "after": snapshot(),
        "witnessed_bytes": 1024 * MEGA,
    }
    return PortRun(**{**fields, **changes})


def measured(gigabits: float) -> Measured:
    """A GiB at this rate."""
    size = 1024 * MEGA
    return Measured(payload_bytes=size, seconds=8 * size / (gigabits * GIGA))


def judge(*runs: PortRun, **limits: Any) -> Verdict:
    """The verdict under these limits."""
    origins = dict.fromkeys(limits, "profile h200")
    return bandwidth.judge(runs, bandwidth.Limits(**limits, origins=origins))


def test_a_port_that_gives_its_rate_passes_with_rate_source_and_witness() -> None:
    """Measured against 400 Gb/s times what InfiniBand leaves for payload."""
    verdict = judge(port())
    (part,) = verdict.parts
    assert (Outcome.PASS, "LoopbackPassed", "") == (
        verdict.outcome,
        verdict.reason,
        verdict.warning,
    )
    assert "mlx5_0/1" == part.part
    assert 390 * GIGA == pytest.approx(part.values["measured_bits_per_second"])
    assert 400 * GIGA * 4096 / 4122 == pytest.approx(part.values["expected_bits_per_second"])
    assert "port 400 Gb/s × 0.994 (InfiniBand, MTU 4096)" == part.notes["expectation"]
    assert "partial" == part.notes["witness"]


@pytest.mark.parametrize(
    ("gigabits", "outcome", "warning"),
    [
        (378, Outcome.PASS, ""),
        (377, Outcome.PASS, "LoopbackBelowExpected"),
        (358, Outcome.PASS, "LoopbackBelowExpected"),
        (357, Outcome.FAIL, ""),
        (0.001, Outcome.FAIL, ""),
    ],
)
def test_below_ninety_percent_fails_and_below_ninety_five_warns(
    gigabits: float, outcome: Outcome, warning: str
) -> None:
    """Of 397.5 Gb/s that the wire leaves."""
    verdict = judge(port(measured=measured(gigabits)))
    assert (outcome, warning) == (verdict.outcome, verdict.warning)
    if outcome is Outcome.FAIL:
        assert ("LoopbackSlow", Kind.PERFORMANCE) == (verdict.reason, verdict.kind)


def test_the_narrower_pcie_path_is_the_expectation() -> None:
    """A Gen4 x8 slot in front of a 400 Gb/s port: 112 Gb/s are fine, and the table says why."""
    verdict = judge(port(pcie_bits_per_second=114.0 * GIGA, measured=measured(112)))
    assert Outcome.PASS is verdict.outcome
    assert "PCIe path 114 Gb/s" == verdict.parts[0].notes["expectation"]


def test_the_port_alone_suffices_and_so_does_pcie() -> None:
    """One known term is an expectation."""
    assert Outcome.FAIL is judge(port(pcie_bits_per_second=None, measured=measured(200))).outcome
    assert Outcome.FAIL is judge(port(port_bits_per_second=None, measured=measured(200))).outcome


def test_no_expectation_is_unknown_and_says_what_is_missing() -> None:
    """Bytes moved, but nothing tells how fast they should."""
    blind = port(
        port_bits_per_second=None,
        port_why="printed as SDR",
        pcie_bits_per_second=None,
        pcie_why="virtual",
    )
    verdict = judge(blind)
    assert (Outcome.UNKNOWN, "NoExpectation") == (verdict.outcome, verdict.reason)
    assert "port rate: printed as SDR; PCIe path: virtual" in verdict.message


def test_an_override_takes_the_place_of_the_hardware() -> None:
    """And is named as the source."""
    verdict = judge(port(measured=measured(180)), expected_gigabits_per_second=190)
    assert (Outcome.PASS, "LoopbackBelowExpected") == (verdict.outcome, verdict.warning)
    assert "profile h200" == verdict.parts[0].notes["expectation"]


RXE = {"software": True, "driver": "rdma_rxe", "pci": None, "port_bits_per_second": None}


def test_software_rdma_fails_unless_it_is_allowed() -> None:
    """Named as what it is; allowed without an expectation it is Unknown, with one it is judged."""
    assert (Outcome.FAIL, "SoftwareRDMA") == (judge(port(**RXE)).outcome, judge(port(**RXE)).reason)
    allowed = judge(port(**RXE), software_rdma="allow")
    assert (Outcome.UNKNOWN, "NoExpectation") == (allowed.outcome, allowed.reason)
    judged = judge(
        port(**RXE, measured=measured(0.2)),
        software_rdma="allow",
        expected_gigabits_per_second=0.05,
    )
    assert Outcome.PASS is judged.outcome


@pytest.mark.parametrize(
    ("step", "code", "reason"),
    [
        ("open", 0, "DeviceNotOpened"),
        ("memory", 12, "MemoryNotRegistered"),
        ("memory", 22, "MemoryNotRegistered"),
        ("queue", 12, "QueuePairRefused"),
        ("connect", 22, "QueuePairNotConnected"),
        ("post", 12, "PostRefused"),
        ("write", -1, "TransferTimedOut"),
        ("write", 12, "RetriesExceeded"),
        ("read", 10, "RemoteAccessRefused"),
        ("write", 9, "TransferFailed"),
    ],
)
def test_each_step_that_fails_has_its_reason(step: str, code: int, reason: str) -> None:
    """A completion status is not an errno, even where the numbers are the same."""
    verdict = judge(
        port(failure=Failure(step=step, code=code, why="it said so"), aftermath="; DOWN now")
    )
    assert (Outcome.FAIL, reason, Kind.MECHANICS) == (verdict.outcome, verdict.reason, verdict.kind)
    assert f"mlx5_0/1: {step}: it said so; DOWN now" in verdict.message
    assert ("RLIMIT_MEMLOCK" in verdict.message) == (step == "memory" and code == 12)


def test_bytes_that_differ_fail_whatever_the_rate() -> None:
    """Integrity comes before speed."""
    verdict = judge(port(corrupted="RDMA WRITE: byte 7 of message 3 is not what was sent"))
    assert (Outcome.FAIL, "DataCorrupted") == (verdict.outcome, verdict.reason)
    assert "byte 7 of message 3" in verdict.message


@pytest.mark.parametrize(
    ("counted", "outcome", "witness"),
    [(1.0, Outcome.PASS, "full"), (0.951, Outcome.PASS, "full"), (0.949, Outcome.FAIL, "")],
)
def test_a_counter_that_must_move_and_does_not_fails(
    counted: float, outcome: Outcome, witness: str
) -> None:
    """rxe counts every packet, the loopback's too: transfers that it did not count did not happen."""
    run = port(
        before=snapshot(packets=100),
        after=snapshot(packets=100 + int(counted * 262144)),
    )
    verdict = judge(run)
    assert outcome is verdict.outcome
    if outcome is Outcome.FAIL:
        assert "NotWitnessed" == verdict.reason
    else:
        assert witness == verdict.parts[0].notes["witness"]


@pytest.mark.parametrize(
    ("changes", "witness"),
    [
        ({"transmitted_bytes": 1024 * MEGA}, "full"),
        ({"write_requests": 16384}, "full"),
        ({"transmitted_bytes": 5}, "partial"),
        ({}, "partial"),
    ],
)
def test_counters_of_the_wire_speak_for_a_run_and_never_against_it(
    changes: dict[str, int], witness: str
) -> None:
    """A loopback inside an HCA does not reach the wire on some of them."""
    before = snapshot(**dict.fromkeys(changes, 0))
    verdict = judge(port(before=before, after=snapshot(**changes)))
    assert (Outcome.PASS, witness) == (verdict.outcome, verdict.parts[0].notes["witness"])


def test_a_busy_port_passes_with_its_bandwidth_deferred() -> None:
    """Mechanics and integrity were shown; the job keeps its bandwidth, and the message says whose it is."""
    verdict = judge(port(measured=None, busy="in use by python3 (pid 4711)"))
    (part,) = verdict.parts
    assert (Outcome.PASS, "deferred") == (part.outcome, part.notes["bandwidth"])
    assert "bandwidth deferred: in use by python3 (pid 4711)" in part.message


def test_a_port_without_reliable_connections_is_skipped() -> None:
    """EFA has none; that is no fault."""
    assert "NotRcCapable" == judge(port(no_rc="Operation not supported")).reason


def test_a_spare_port_is_skipped_and_a_node_without_an_active_one_fails() -> None:
    """Whether a port must be up is the driver rung's to say; but with none no bytes can move."""
    down = port(device="mlx5_1", active=False, state="DOWN, Polling", measured=None)
    assert Outcome.PASS is judge(port(), down).outcome
    alone = judge(down)
    assert (Outcome.FAIL, "NoActivePort") == (alone.outcome, alone.reason)


def test_the_worst_port_speaks_and_all_are_kept() -> None:
    """One slow port among eight fails the node, with its name."""
    runs = [port(device=f"mlx5_{n}") for n in range(7)]
    verdict = judge(*runs, port(device="mlx5_7", measured=measured(100)))
    assert (Outcome.FAIL, "LoopbackSlow") == (verdict.outcome, verdict.reason)
    assert verdict.message.startswith("mlx5_7/1 moved 100 Gb/s, 25.2 % of 397.5 Gb/s")
    assert 8 == len(verdict.parts)


def test_ignored_devices_are_not_judged() -> None:
    """By name, PCI address, or port."""
    bad = port(device="mlx5_9", pci="0000:ff:00.0", measured=measured(1))
    for name in ("mlx5_9", "0000:ff:00.0", "mlx5_9/1"):
        assert Outcome.PASS is judge(port(), bad, ignore=(name,)).outcome


def test_no_port_at_all_is_nothing_to_check() -> None:
    """The inventory says that devices are missing; here there is nothing to move bytes through."""
    assert (Outcome.SKIP, "NothingToCheck") == (judge().outcome, judge().reason)


@pytest.mark.parametrize(
    ("transport", "mtu", "efficiency"),
    [
        ("RoCE v2 IPv4", 4096, 0.980),
        ("RoCE v2 IPv4", 2048, 0.962),
        ("RoCE v2 IPv4", 1024, 0.926),
        ("RoCE v2 IPv6", 4096, 0.976),
        ("RoCE v1", 4096, 0.978),
        ("InfiniBand", 4096, 0.994),
    ],
)
def test_wire_efficiency_is_that_of_the_packet_formats(
    transport: str, mtu: int, efficiency: float
) -> None:
    """Payload over payload and headers, as the reference tables of RoCE and InfiniBand have it."""
    from probes.loopback import _expectation  # noqa: PLC0415

    assert efficiency == pytest.approx(_expectation.wire_efficiency(transport, mtu), abs=0.0006)


def test_a_verdict_is_about_facts_that_stay() -> None:
    """The facts can't be changed by who judges them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        port().device = "other"  # type: ignore[misc]


def test_a_port_whose_use_cannot_be_told_is_unknown() -> None:
    """Blind is not in use: a rate that was never measured for that reason opens nothing."""
    blind = port(measured=None, busy="can't tell whether it is in use (netlink)", blind="netlink")
    verdict = judge(blind)
    assert (Outcome.UNKNOWN, "UseUnreadable") == (verdict.outcome, verdict.reason)
    assert "moved bytes intact" in verdict.message


def test_a_port_that_lost_its_queue_pairs_fails_and_one_that_never_had_them_is_skipped() -> None:
    """The same refusal means a broken driver on a port that moved bytes in this boot."""
    without = port(no_rc="Operation not supported", measured=None)
    assert Outcome.SKIP is judge(without).outcome
    lost = judge(port(no_rc="Operation not supported", measured=None, moved_before=True))
    assert (Outcome.FAIL, "NotRcCapable") == (lost.outcome, lost.reason)
