"""Whether programs can reach a device, layer by layer."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from probes.contract import Host, Outcome, Verdict
from probes.driver import modules
from tests import hosts


def judge(host: Host, **limits: Any) -> Verdict:
    """The verdict on a machine."""
    return modules.judge(modules.read(host), modules.Limits(**limits))


def test_a_healthy_node_passes_with_driver_and_node(tmp_path: Path) -> None:
    """Each device with its kernel driver, its device node and the version it speaks."""
    verdict = judge(hosts.unpack("h200-8x400-roce", tmp_path))
    assert (Outcome.PASS, "DevicesReachable", 9) == (
        verdict.outcome,
        verdict.reason,
        len(verdict.parts),
    )
    assert "mlx5_0 by mlx5_core at /dev/infiniband/uverbs0" == verdict.parts[0].message
    assert 1 == verdict.parts[0].values["kernel_abi"]


def test_ib_uverbs_that_is_not_loaded_fails(tmp_path: Path) -> None:
    """With the command that loads it."""
    host = hosts.unpack("h100-2x400-ib", tmp_path)
    (host.root / "sys/module/ib_uverbs").rename(tmp_path / "gone")
    verdict = judge(host)
    assert (Outcome.FAIL, "ModuleMissing") == (verdict.outcome, verdict.reason)
    assert "modprobe ib_uverbs" in verdict.message


def test_a_device_without_character_device_fails(tmp_path: Path) -> None:
    """Its driver never registered with ib_uverbs."""
    host = hosts.unpack("h100-2x400-ib", tmp_path)
    (host.root / "sys/class/infiniband_verbs/uverbs1/ibdev").unlink()
    verdict = judge(host)
    assert "UverbsMissing" == verdict.reason
    assert "mlx5_1 has no uverbs device" in verdict.message
    assert Outcome.PASS is judge(host, ignore=("mlx5_1",)).outcome


def test_a_missing_node_and_a_forbidden_one_are_told_apart(tmp_path: Path) -> None:
    """udev did not make it, or something refuses to open it (here: it is a folder)."""
    host = hosts.unpack("h100-2x400-ib", tmp_path)
    node = host.root / "dev/infiniband/uverbs1"
    node.unlink()
    assert "DeviceNodeMissing" == judge(host).reason
    node.mkdir()
    verdict = judge(host)
    assert "DeviceNodeForbidden" == verdict.reason
    assert "/dev/infiniband/uverbs1 can't be opened: Is a directory" in verdict.message


def test_a_missing_provider_library_fails(tmp_path: Path) -> None:
    """Looked for on live machines only; judged wherever it was looked for."""
    facts = modules.read(hosts.unpack("h100-2x400-ib", tmp_path))
    without = tuple(
        (device, dataclasses.replace(access, provider=None)) for device, access in facts.found
    )
    verdict = modules.judge(dataclasses.replace(facts, found=without), modules.Limits())
    assert "ProviderMissing" == verdict.reason
    assert "no libibverbs provider for mlx5_core: install ibverbs-providers" in verdict.message


def test_no_device_is_nothing_to_check(tmp_path: Path) -> None:
    """That devices are missing is the inventory's to say."""
    assert Outcome.SKIP is judge(hosts.unpack("no-rdma", tmp_path)).outcome


@pytest.mark.in_guest
def test_a_real_device_is_reachable_with_its_provider() -> None:
    """The guest's software device, through its own library, and nothing stays open."""
    verdict = judge(Host())
    assert (Outcome.PASS, "DevicesReachable") == (verdict.outcome, verdict.reason)
    assert verdict.parts[0].notes["provider"].startswith("librxe-rdmav")
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [] == [link for link in links if "infiniband" in link]


@pytest.mark.in_guest
def test_a_device_cgroup_that_forbids_the_node_is_said_so() -> None:
    """A container with the node mounted and not allowed: permission denied, and which layer to look at."""
    node = Path("/dev/infiniband/uverbs0")
    before = node.stat().st_mode
    node.chmod(0o600)
    try:
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if judge(Host()).reason == "DeviceNodeForbidden" else 1)
        _, status = os.waitpid(child, 0)
    finally:
        node.chmod(before & 0o777)
    assert 0 == os.waitstatus_to_exitcode(status)
