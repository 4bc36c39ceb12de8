"""RDMA devices: what is missing, what verbs see differently, and what is as it should be."""

import os
import re

import pytest

from probes import contract
from probes.inventory import devices
from probes.readers import devices as devices_reader
from probes.readers import nics
from tests.nvml_replay import machine
from tests.probes.inventory import trees

_TWO = (trees.device("mlx5_0", "0000:1a:00.0"), trees.device("mlx5_1", "0000:5c:00.0"))
_IDLE = nics.Nic(pci="0000:3c:00.0", rdma_module="mlx5_ib")


def facts(
    *found: devices_reader.Device,
    listed: tuple[str, ...] | None = None,
    not_listed: str = "",
    no_verbs: bool = False,
    idle_nics: tuple[nics.Nic, ...] = (),
) -> devices.Facts:
    """Facts of a machine that was not asked for verbs, unless said."""
    return devices.Facts(
        found=found, listed=listed, not_listed=not_listed, no_verbs=no_verbs, idle_nics=idle_nics
    )


_FAIL, _PASS, _UNKNOWN = contract.Outcome.FAIL, contract.Outcome.PASS, contract.Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("seen", "limits", "outcome", "reason", "words"),
    [
        (facts(), {}, _FAIL, "NoRdmaDevice", r"no RDMA device: /sys/class/infiniband is empty or missing.*TCP$"),
        (facts(idle_nics=(_IDLE,)), {}, _FAIL, "NoRdmaDevice", r"; 0000:3c:00.0 could do RDMA .* is mlx5_ib loaded\?$"),
        (facts(), {"rdma_devices": 8}, _FAIL, "NoRdmaDevice", r"^no RDMA device"),
        (facts(), {"rdma_devices": 0}, contract.Outcome.SKIP, "NoRdmaExpected", r"^no RDMA device, and none expected$"),
        (facts(*_TWO), {"ignore": ("mlx5_0", "0000:5c:00.0")}, _FAIL, "NoRdmaDevice", r"^no RDMA device"),
        (facts(*_TWO), {"rdma_devices": 8}, _FAIL, "RdmaDeviceMissing",
         r"^2 RDMA devices \(mlx5_0, mlx5_1\), expected 8 \(profile h200\)$"),
        (facts(*_TWO, idle_nics=(_IDLE,)), {"rdma_devices": 3}, _FAIL, "RdmaDeviceMissing", r"; 0000:3c:00.0 could do"),
        (facts(*_TWO), {"rdma_devices": 2, "ignore": ("mlx5_1",)}, _FAIL, "RdmaDeviceMissing", r"^1 RDMA devices"),
        (facts(*_TWO, not_listed="verbs: load ib_uverbs", no_verbs=True), {}, _FAIL, "VerbsUnavailable",
         r"^sysfs shows mlx5_0, mlx5_1 but verbs: load ib_uverbs$"),
        (facts(*_TWO, not_listed="pyverbs: install it"), {}, _UNKNOWN, "VerbsUnreadable",
         r"^sysfs shows mlx5_0, mlx5_1 but they could not be compared: pyverbs: install it$"),
        (facts(*_TWO, listed=("mlx5_0",)), {}, _FAIL, "VerbsMismatch",
         r"^verbs do not list mlx5_1, which sysfs shows: the provider library is missing"),
        (facts(*_TWO, listed=()), {}, _FAIL, "VerbsMismatch", r"^verbs do not list mlx5_0, mlx5_1,"),
        (facts(*_TWO, listed=("mlx5_0", "mlx5_1", "rxe9")), {}, _FAIL, "VerbsMismatch",
         r"^verbs list rxe9, which sysfs does not show$"),
        (facts(*_TWO, listed=("mlx5_0",)), {"ignore": ("mlx5_1",)}, _PASS, "DevicesPresent", r"^mlx5_0 \(mlx5_core\)$"),
        (facts(*_TWO, listed=("mlx5_0", "mlx5_1")), {"ignore": ("mlx5_1",)}, _PASS, "DevicesPresent", r"^mlx5_0"),
        (facts(*_TWO, listed=("mlx5_0", "mlx5_1")), {"rdma_devices": 2}, _PASS, "DevicesPresent",
         r"^mlx5_0 \(mlx5_core\), mlx5_1 \(mlx5_core\)$"),
        (facts(trees.device("rxe0")), {}, _PASS, "DevicesPresent", r"^rxe0 \(rdma_rxe\)$"),
    ],
)  # fmt: skip
def test_judge(
    seen: devices.Facts,
    limits: dict[str, object],
    outcome: contract.Outcome,
    reason: str,
    words: str,
) -> None:
    """Each finding has its outcome and reason, and names the devices."""
    origins = {"rdma_devices": "profile h200"}

    verdict = devices.judge(seen, devices.Limits(origins=origins, **limits))  # type: ignore[arg-type]

    assert (outcome, reason) == (verdict.outcome, verdict.reason)
    assert re.search(words, verdict.message), verdict.message


def test_more_devices_than_expected_are_an_event_and_no_failure() -> None:
    """A device too many takes nothing from the jobs; the count is there for a graph."""
    verdict = devices.judge(facts(*_TWO), devices.Limits(rdma_devices=1))
    assert (_PASS, "RdmaDeviceUnexpected") == (verdict.outcome, verdict.warning)
    assert {"rdma_devices": 2.0} == verdict.values
    assert "" == devices.judge(facts(*_TWO), devices.Limits(rdma_devices=2)).warning


def test_devices_of_a_machine_are_read(tree: trees.Tree) -> None:
    """Device and idle NIC are told apart, and a captured tree is not asked for verbs."""
    tree.rdma("mlx5_0", "0000:1a:00.0")
    tree.pci("0000:3c:00.0", driver="mlx5_core", vendor="0x15b3\n", **{"class": "0x020000\n"})

    found = devices.read(tree.host)

    assert [("mlx5_0", "0000:1a:00.0")] == [(one.name, one.pci) for one in found.found]
    assert (_IDLE,) == found.idle_nics
    assert (None, "", False) == (found.listed, found.not_listed, found.no_verbs)


def test_a_machine_without_rdma_fails_and_says_what_was_looked_at(tree: trees.Tree) -> None:
    """No RDMA at all is a finding, never a skip: work on this node would fall back to TCP."""
    verdict = devices.judge(devices.read(tree.host), devices.Limits())
    assert (_FAIL, "NoRdmaDevice") == (verdict.outcome, verdict.reason)
    assert "/sys/class/infiniband" in verdict.message


def test_a_device_that_cannot_be_read_is_unreadable(tree: trees.Tree) -> None:
    """An I/O error in sysfs is blindness about the device, not its absence."""
    tree.rdma("mlx5_0", "0000:1a:00.0")
    firmware = tree.root / "sys/class/infiniband/mlx5_0/fw_ver"
    firmware.unlink()
    firmware.symlink_to("/proc/self/mem")

    with pytest.raises(contract.Unreadable, match=r"fw_ver: Input/output error \(EIO\)$"):
        devices.read(tree.host)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "VerbsUnavailable"),
        ({"abi_version": "6\n"}, "VerbsMismatch"),
        (
            {
                "abi_version": "6\n",
                "uverbs0/ibdev": "mlx5_0\n",
                "uverbs0/abi_version": "1\n",
            },
            "VerbsMismatch",
        ),
    ],
)
def test_what_verbs_list_is_compared_on_a_live_machine(
    tree: trees.Tree, files: dict[str, str], reason: str
) -> None:
    """The real library on a device that it can't see: no ib_uverbs, no character device, no provider
    that takes it.
    """
    tree.rdma("mlx5_0", "0000:1a:00.0")
    for path, text in files.items():
        tree.write(f"sys/class/infiniband_verbs/{path}", text)

    verdict = machine.verdict(tree.root, dict(os.environ), "inventory.devices")

    assert ("fail", reason) == (verdict["outcome"], verdict["reason"])
    assert "mlx5_0" in verdict["message"]


@pytest.mark.in_guest
def test_verbs_and_kernel_agree_on_a_working_node() -> None:
    """On a node whose soft-RoCE device works, both sides list it."""
    verdict = devices.judge(devices.read(contract.Host()), devices.Limits())

    assert (_PASS, "DevicesPresent") == (verdict.outcome, verdict.reason)
    assert "rxe0 (rdma_rxe)" == verdict.message
