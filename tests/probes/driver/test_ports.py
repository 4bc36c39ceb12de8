"""Ports as real nodes have them: up, down, spare, slow, unmanaged; and files that can't be read."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes import contract
from probes.contract import Host, Kind, Outcome, Unreadable, Verdict
from probes.driver import ports
from tests import hosts

H200, IB, VM = "h200-8x400-roce", "h100-2x400-ib", "vm-efa-and-vf"
RAIL = "sys/class/infiniband/mlx5_2/ports/1"


def judge(host: Host, **limits: Any) -> Verdict:
    """The verdict on a machine."""
    origins = dict.fromkeys(limits, "profile lab")
    return ports.judge(ports.read(host), ports.Limits(**limits, origins=origins))


def write(host: Host, path: str, text: str) -> None:
    """Changes one file."""
    (host.root / path).write_text(text + "\n")


def test_a_healthy_node_passes_with_every_port_named(tmp_path: Path) -> None:
    """Nine active ports, each with rate and MTU."""
    verdict = judge(hosts.unpack(H200, tmp_path))
    assert (Outcome.PASS, "PortsActive", "") == (verdict.outcome, verdict.reason, verdict.warning)
    assert 9 == len(verdict.parts)
    first = verdict.parts[0]
    assert "mlx5_0/1 Ethernet LinkUp, 400 Gb/s, RDMA MTU 4096 (netdev 4200)" == first.message
    assert 4e11 == first.values["rate_bits_per_second"]


def test_a_port_that_is_down_fails_with_its_physical_state(tmp_path: Path) -> None:
    """Polling for a partner is not the same as disabled; both are down."""
    verdict = judge(hosts.unpack(IB, tmp_path))
    assert (Outcome.FAIL, "PortDown", Kind.MECHANICS) == (
        verdict.outcome,
        verdict.reason,
        verdict.kind,
    )
    assert "mlx5_1/1 is DOWN (physical state Polling), InfiniBand" == verdict.message


def test_a_spare_port_may_be_down_where_the_settings_say_so(tmp_path: Path) -> None:
    """`any`: one active port is enough; with none active all of them fail."""
    host = hosts.unpack(IB, tmp_path)
    verdict = judge(host, require_up="any")
    assert Outcome.PASS is verdict.outcome
    assert [Outcome.PASS, Outcome.SKIP] == [part.outcome for part in verdict.parts]
    write(host, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert "PortDown" == judge(host, require_up="any").reason


@pytest.mark.parametrize("name", ["mlx5_1", "mlx5_1/1", "0000:2a:00.0"])
def test_an_ignored_port_is_not_looked_at(tmp_path: Path, name: str) -> None:
    """By device, port or PCI address."""
    assert Outcome.PASS is judge(hosts.unpack(IB, tmp_path), ignore=(name,)).outcome


@pytest.mark.parametrize("state", ["2: INIT", "3: ARMED"])
def test_a_link_that_nobody_configured_is_initializing(tmp_path: Path, state: str) -> None:
    """The cable is fine and the subnet manager has not come by."""
    host = hosts.unpack(IB, tmp_path)
    write(host, "sys/class/infiniband/mlx5_0/ports/1/state", state)
    verdict = judge(host, ignore=("mlx5_1",))
    assert "PortInitializing" == verdict.reason
    assert "no subnet manager has configured it" in verdict.message


def test_infiniband_without_a_subnet_manager_fails(tmp_path: Path) -> None:
    """SM LID 0 on an active port."""
    host = hosts.unpack(IB, tmp_path)
    write(host, "sys/class/infiniband/mlx5_0/ports/1/sm_lid", "0x0")
    assert "NoSubnetManager" == judge(host, ignore=("mlx5_1",)).reason


def test_a_lid_that_is_not_told_is_not_a_missing_subnet_manager(tmp_path: Path) -> None:
    """Unknown, with the path; on Ethernet there is none to ask for."""
    host = hosts.unpack(IB, tmp_path / "ib")
    (host.root / "sys/class/infiniband/mlx5_0/ports/1/sm_lid").unlink()
    with pytest.raises(Unreadable, match=r"mlx5_0/ports/1/sm_lid: .*ENOENT"):
        ports.read(host)
    host = hosts.unpack(H200, tmp_path / "roce")
    (host.root / RAIL / "sm_lid").unlink()
    assert Outcome.PASS is judge(host).outcome


def test_the_link_layer_is_compared_where_one_is_expected(tmp_path: Path) -> None:
    """A port that was left in InfiniBand mode on a RoCE fabric, and where the expectation is from."""
    host = hosts.unpack(IB, tmp_path)
    verdict = judge(host, ignore=("mlx5_1",), link_layer="Ethernet")
    assert "LinkLayerMismatch" == verdict.reason
    assert "mlx5_0/1 is InfiniBand, expected Ethernet (profile lab)" == verdict.message


def test_a_link_that_was_negotiated_down_is_a_performance_failure(tmp_path: Path) -> None:
    """200 of 400 Gb/s: it works, at half the speed; one look does not condemn a verified node."""
    host = hosts.unpack(H200, tmp_path)
    write(host, "sys/class/net/rail2/speed", "200000")
    verdict = judge(host, minimum_gigabits_per_second=400, ignore=("mlx5_8",))
    assert (Outcome.FAIL, "RateBelowExpected", Kind.PERFORMANCE) == (
        verdict.outcome, verdict.reason, verdict.kind,
    )  # fmt: skip
    assert (
        "mlx5_2/1 runs at 200 Gb/s (speed of rail2), expected 400 (profile lab)" == verdict.message
    )


def test_a_dead_port_speaks_before_a_slow_one(tmp_path: Path) -> None:
    """What acts at once must not wait behind what is weighed."""
    host = hosts.unpack(H200, tmp_path)
    write(host, "sys/class/net/rail1/speed", "200000")
    write(host, f"{RAIL}/state", "1: DOWN")
    verdict = judge(host, minimum_gigabits_per_second=400, ignore=("mlx5_8",))
    assert ("PortDown", Kind.MECHANICS) == (verdict.reason, verdict.kind)
    assert "mlx5_2/1 is DOWN" in verdict.message


def test_a_speed_that_the_kernel_does_not_know_is_no_speed(tmp_path: Path) -> None:
    """Printed as SDR on a 400 Gb/s port: unknown, with a warning, and never 2.5 Gb/s."""
    host = hosts.unpack(IB, tmp_path)
    write(host, "sys/class/infiniband/mlx5_0/ports/1/rate", "10 Gb/sec (4X SDR)")
    verdict = judge(host, ignore=("mlx5_1",), minimum_gigabits_per_second=400)
    assert (Outcome.PASS, "RateUnknown") == (verdict.outcome, verdict.warning)
    assert "rate unknown" in verdict.parts[0].message


def test_a_small_mtu_is_a_warning(tmp_path: Path) -> None:
    """1500 bytes of Ethernet are 1024 of RDMA: seven percent are headers."""
    host = hosts.unpack(H200, tmp_path)
    write(host, "sys/class/net/rail2/mtu", "1500")
    assert (Outcome.PASS, "SmallMtu") == (judge(host).outcome, judge(host).warning)


def test_a_virtual_machine_passes_on_what_it_shows(tmp_path: Path) -> None:
    """EFA has no link layer, a virtual function takes its rate from the netdev."""
    verdict = judge(hosts.unpack(VM, tmp_path))
    assert Outcome.PASS is verdict.outcome
    assert {"mlx5_0/1", "rdmap0s30/1"} == {part.part for part in verdict.parts}


def test_no_device_is_nothing_to_check(tmp_path: Path) -> None:
    """That devices are missing is the inventory's to say."""
    assert Outcome.SKIP is judge(hosts.unpack("no-rdma", tmp_path)).outcome


def empty(path: Path) -> None:
    """Nothing in it."""
    path.write_text("")


def binary(path: Path) -> None:
    """No text."""
    path.write_bytes(b"\x00\xff\xfe")


def huge(path: Path) -> None:
    """A megabyte."""
    path.write_text("4: ACTIVE" * 200_000)


def garbage(path: Path) -> None:
    """No state."""
    path.write_text("maybe\n")


def folder(path: Path) -> None:
    """A folder of that name."""
    path.unlink()
    path.mkdir()


def io_error(path: Path) -> None:
    """A kernel file whose first page is not mapped: EIO."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def gone(path: Path) -> None:
    """Not there."""
    path.unlink()


@pytest.mark.parametrize("spoil", [empty, binary, huge, garbage, folder, io_error, gone])
@pytest.mark.parametrize("file", ["state", "phys_state"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, spoil: Callable[[Path], None], file: str
) -> None:
    """Never guessed: the probe is Unknown, with path and cause in one line."""
    host = hosts.unpack(H200, tmp_path)
    spoil(host.root / RAIL / file)
    with pytest.raises(Unreadable) as caught:
        ports.read(host)
    assert str(caught.value).endswith(caught.value.why)
    assert f"mlx5_2/ports/1/{file}: " in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_a_port_that_is_gone_is_missed(tmp_path: Path) -> None:
    """Its device is still listed, its folder is not: no profile has to say how many there were."""
    host = hosts.unpack(IB, tmp_path)
    before = ports.judge(ports.read(host), ports.Limits(ignore=("mlx5_1",)))
    passed = "\n".join(part.part for part in before.parts)
    shutil.rmtree(host.root / "sys/class/infiniband/mlx5_0/ports")
    later = Host(root=host.root, inputs={contract.SEEN: passed})
    verdict = judge(later, ignore=("mlx5_1",))
    assert (Outcome.FAIL, "PortLost") == (verdict.outcome, verdict.reason)
    assert "mlx5_0/1 was active earlier in this boot" in verdict.message
    assert Outcome.FAIL is not judge(later, ignore=("mlx5_0", "mlx5_1")).outcome
