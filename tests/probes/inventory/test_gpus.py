"""GPUs: PCI, kernel module and NVIDIA's library agree, or the difference is named."""

import re
from pathlib import Path

import pytest

from probes import contract
from probes.inventory import gpus
from probes.readers import nvml
from tests import nvml_replay
from tests.nvml_replay import machine
from tests.probes.inventory import trees

_FAIL, _PASS = contract.Outcome.FAIL, contract.Outcome.PASS
_SKIP, _UNKNOWN = contract.Outcome.SKIP, contract.Outcome.UNKNOWN
_PCI = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0")


def gpu(
    index: int, pci: str = "", state: nvml.State = nvml.State.ANSWERS, problem: str = ""
) -> nvml.Gpu:
    """A GPU as the library shows it; by default one that answers at the address of its index."""
    if state is nvml.State.ANSWERS:
        pci = pci or _PCI[index]
    return nvml.Gpu(
        index=index, name="H200", uuid=f"GPU-{index}", pci=pci, state=state, problem=problem
    )


def facts(
    *seen: nvml.Gpu,
    on_pci: tuple[str, ...] = _PCI,
    driver_loaded: bool = True,
    unseen: str = "",
    mismatch: bool = False,
) -> gpus.Facts:
    """Facts of a machine with three GPUs, unless said."""
    library = nvml.Nvml(driver_version="570", cuda_version="12.8", gpus=seen)
    return gpus.Facts(
        on_pci=on_pci,
        driver_loaded=driver_loaded,
        seen=None if unseen else library,
        unseen=unseen,
        mismatch=mismatch,
    )


_ALL = (gpu(0), gpu(1), gpu(2))
_LOST = gpu(1, state=nvml.State.LOST, problem="GPU is lost")
_LOST_AT = gpu(1, _PCI[1], nvml.State.LOST, "GPU is lost")
_RESET = gpu(1, _PCI[1], nvml.State.NEEDS_RESET, "GPU requires restart")
_SILENT = gpu(1, state=nvml.State.SILENT, problem="Insufficient Permissions")


@pytest.mark.parametrize(
    ("seen", "expected", "outcome", "reason", "words"),
    [
        (facts(*_ALL), None, _PASS, "GpusPresent", r"^3 GPUs answer \(H200\)$"),
        (facts(*_ALL), 3, _PASS, "GpusPresent", r"^3 GPUs answer"),
        (facts(*_ALL), 8, _FAIL, "GpuMissing", r"^PCI shows 3 GPUs, expected 8 \(profile h200\)$"),
        (facts(on_pci=(), unseen="none"), None, _SKIP, "NoGpu", r"^no GPU on PCI$"),
        (facts(on_pci=(), unseen="none"), 0, _SKIP, "NoGpu", r"^no GPU on PCI$"),
        (facts(on_pci=(), unseen="none"), 8, _FAIL, "GpuMissing", r"^PCI shows 0 GPUs, expected 8"),
        (facts(unseen="x", driver_loaded=False), None, _FAIL, "GpuDriverMissing", r"module is not loaded$"),
        (facts(unseen="NVML: differ", mismatch=True), None, _FAIL, "DriverLibraryMismatch", r"^NVML: differ$"),
        (facts(unseen="NVML: none"), None, _UNKNOWN, "NvmlUnavailable",
         r"^PCI shows 3 GPUs but they can't be asked: NVML: none$"),
        (facts(gpu(0), gpu(2)), None, _FAIL, "GpuLost", r"^0000:43:00.0: is on PCI and NVML does not show it$"),
        (facts(gpu(0)), None, _FAIL, "GpuLost", r"^0000:43:00.0: is on PCI .*\(and 1 more like it\)$"),
        (facts(), None, _FAIL, "GpuLost", r"^0000:1b:00.0: is on PCI .*\(and 2 more like it\)$"),
        (facts(gpu(0), _LOST, gpu(2)), None, _FAIL, "GpuLost", r"^0000:43:00.0: GPU is lost$"),
        (facts(gpu(0), _LOST_AT, gpu(2)), None, _FAIL, "GpuLost", r"^0000:43:00.0: GPU is lost$"),
        (facts(gpu(0), _RESET, gpu(2)), None, _FAIL, "GpuResetRequired", r"^0000:43:00.0: GPU requires restart$"),
        (facts(gpu(0), _SILENT, gpu(2)), None, _UNKNOWN, "GpuUnreadable", r"^0000:43:00.0: Insufficient Perm"),
        # One has no address and two addresses are free: which is which is not guessed.
        (facts(_SILENT, gpu(2)), None, _FAIL, "GpuLost", r"^0000:1b:00.0: is on PCI"),
        (facts(gpu(0), _LOST), None, _FAIL, "GpuLost", r"^GPU 1: GPU is lost \(and 2 more"),
        # Where the library writes addresses that PCI does not know, the count decides.
        (facts(gpu(0, "0001:00:00.0"), gpu(1), gpu(2)), None, _PASS, "GpusPresent", r"^3 GPUs"),
    ],
)  # fmt: skip
def test_judge(
    seen: gpus.Facts, expected: int | None, outcome: contract.Outcome, reason: str, words: str
) -> None:
    """Counts, driver and library come first, then each GPU by its address."""
    limits = gpus.Limits(gpus=expected, origins={"gpus": "profile h200"})

    verdict = gpus.judge(seen, limits)

    assert (outcome, reason) == (verdict.outcome, verdict.reason)
    assert re.search(words, verdict.message), verdict.message


def test_each_gpu_has_its_own_verdict() -> None:
    """One lost GPU does not hide that the others answer, and each part is an address."""
    parts = gpus.judge(facts(gpu(0), _LOST, gpu(2)), gpus.Limits()).parts
    assert [
        ("0000:1b:00.0", _PASS, "0000:1b:00.0 H200 GPU-0"),
        ("0000:43:00.0", _FAIL, "0000:43:00.0: GPU is lost"),
        ("0000:52:00.0", _PASS, "0000:52:00.0 H200 GPU-2"),
    ] == [(part.part, part.outcome, part.message) for part in parts]


def test_more_gpus_than_expected_are_an_event_and_no_failure() -> None:
    """The warning is a pass's alone: a lost GPU stays a lost GPU."""
    assert "GpuUnexpected" == gpus.judge(facts(*_ALL), gpus.Limits(gpus=2)).warning
    assert "" == gpus.judge(facts(*_ALL), gpus.Limits(gpus=3)).warning
    assert "" == gpus.judge(facts(gpu(0), _LOST, gpu(2)), gpus.Limits(gpus=2)).warning


def test_only_gpus_count_as_gpus(tree: trees.Tree) -> None:
    """Audio functions of the same board, NVSwitches and other vendors' display controllers do not."""
    tree.gpus("0000:1b:00.0")
    tree.pci("0000:05:00.0", vendor="0x10de\n", **{"class": "0x068000\n"})
    tree.pci("0000:02:00.0", vendor="0x1a03\n", **{"class": "0x030000\n"})
    tree.pci("0000:65:00.0", vendor="0x10de\n", **{"class": "0x030000\n"})

    found = gpus.read(tree.host)

    assert ("0000:1b:00.0", "0000:65:00.0") == found.on_pci
    assert (None, False) == (found.seen, found.driver_loaded)


def test_a_captured_tree_is_not_asked_through_this_machines_library(tree: trees.Tree) -> None:
    """The library would speak about another machine than the files."""
    tree.gpus("0000:1b:00.0")
    tree.write("sys/module/nvidia/version", "570.124.06\n")

    verdict = gpus.judge(gpus.read(tree.host), gpus.Limits())

    assert (_UNKNOWN, "NvmlUnavailable") == (verdict.outcome, verdict.reason)
    assert verdict.message.endswith(f"{tree.root} is a captured tree")


def _eight(tree: trees.Tree) -> nvml_replay.Capture:
    """Eight GPUs on PCI with a loaded driver, and the library's answers for them."""
    capture = nvml_replay.Capture()
    tree.gpus(*capture.addresses())
    tree.write("sys/module/nvidia/version", "570.124.06\n")
    return capture


def test_eight_healthy_gpus_pass(tree: trees.Tree, tmp_path: Path) -> None:
    """The whole way: the command that the agent runs, PCI's files and the library."""
    capture = _eight(tree)

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.gpus")

    assert ("pass", "GpusPresent") == (verdict["outcome"], verdict["reason"])
    assert "8 GPUs answer (NVIDIA H200)" == verdict["message"]
    assert list(capture.addresses()) == [part["part"] for part in verdict["parts"]]


def test_a_lost_gpu_is_named_by_its_address(tree: trees.Tree, tmp_path: Path) -> None:
    """NVML tells only the index of a GPU that it lost; a person needs the slot."""
    capture = _eight(tree)
    capture.devices[4]["nvmlDeviceGetHandleByIndex_v2"] = [nvml_replay.GPU_IS_LOST]

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.gpus")

    assert ("fail", "GpuLost") == (verdict["outcome"], verdict["reason"])
    assert "0000:9d:00.0: GPU is lost" == verdict["message"]


def test_a_gpu_that_the_library_leaves_out_is_lost(tree: trees.Tree, tmp_path: Path) -> None:
    """After a driver reload a dead GPU is in no list but PCI's."""
    capture = _eight(tree)
    capture.without(7)

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.gpus")

    assert ("fail", "GpuLost") == (verdict["outcome"], verdict["reason"])
    assert "0000:df:00.0: is on PCI and NVML does not show it" == verdict["message"]


def test_an_upgrade_without_a_reload_is_a_mismatch(tree: trees.Tree, tmp_path: Path) -> None:
    """New jobs on such a node fail to start; what helps is in the message."""
    capture = _eight(tree)
    capture.system["nvmlInitWithFlags"] = [nvml_replay.LIB_RM_VERSION_MISMATCH]

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.gpus")

    assert ("fail", "DriverLibraryMismatch") == (verdict["outcome"], verdict["reason"])
    assert verdict["message"].endswith("Reload the kernel module, or reboot")


def test_versions_of_module_and_library_are_compared(tree: trees.Tree, tmp_path: Path) -> None:
    """A library that still opens and says another version than the loaded module is the same mismatch."""
    capture = _eight(tree)
    capture.system["nvmlSystemGetDriverVersion"] = [nvml_replay.SUCCESS, "580.65.06"]

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.versions")

    assert ("fail", "DriverLibraryMismatch") == (verdict["outcome"], verdict["reason"])
    assert ("570.124.06", "12.8") == (verdict["notes"]["gpu_driver"], verdict["notes"]["cuda"])


def test_versions_are_told_without_a_library(tree: trees.Tree, tmp_path: Path) -> None:
    """What the kernel tells is told even where the GPU library can't be used."""
    capture = _eight(tree)
    capture.system["nvmlInitWithFlags"] = [nvml_replay.NO_PERMISSION]

    verdict = machine.verdict(tree.root, capture.environment(tmp_path), "inventory.versions")

    assert ("pass", "570.124.06") == (verdict["outcome"], verdict["notes"]["gpu_driver"])
    assert "cuda" not in verdict["notes"]
