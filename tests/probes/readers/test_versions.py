"""Versions are read where the kernel writes them, and are empty where there is nothing to tell."""

from pathlib import Path

import pytest

from probes import contract
from probes.readers import versions
from tests.probes.inventory import trees


@pytest.fixture
def tree(tmp_path: Path) -> trees.Tree:
    """A machine with a kernel and nothing else."""
    return trees.Tree(tmp_path)


def test_a_bare_machine_has_a_kernel(tree: trees.Tree) -> None:
    """Without RDMA and GPUs everything else is empty, and the RDMA stack is the kernel's own."""
    assert versions.Versions(
        kernel="6.8.0-60-generic",
        rdma_stack="inbox",
        libibverbs="",
        firmware=(),
        gpu_driver="",
        gpu_library="",
        cuda="",
    ) == versions.read(tree.host)


@pytest.mark.parametrize(
    ("files", "stack"),
    [
        ({}, "inbox"),
        # Some inbox modules carry a version as well: it is the compatibility module that tells.
        ({"mlx5_core/version": "5.0-0\n"}, "inbox"),
        ({"mlx_compat/version": "24.10-1.1.4\n"}, "OFED 24.10-1.1.4"),
        ({"mlx_compat/refcnt": "7\n", "mlx5_core/version": "24.10-1.1.4\n"}, "OFED 24.10-1.1.4"),
        ({"mlx_compat/version": "\n", "mlx5_core/version": "24.10\n"}, "OFED 24.10"),
        ({"mlx_compat/refcnt": "7\n"}, "OFED"),
    ],
)
def test_inbox_and_ofed_are_told_apart(tree: trees.Tree, files: dict[str, str], stack: str) -> None:
    """The compatibility module marks NVIDIA's stack; its version stands on it or on the driver."""
    for path, text in files.items():
        tree.write(f"sys/module/{path}", text)
    assert stack == versions.read(tree.host).rdma_stack


def test_firmware_is_told_for_each_device(tree: trees.Tree) -> None:
    """Two cards of one machine may differ, which is the point of reading both."""
    tree.rdma("mlx5_0", "0000:1a:00.0", firmware="28.43.2026")
    tree.rdma("mlx5_1", "0000:5c:00.0", firmware="28.36.1010")
    assert (("mlx5_0", "28.43.2026"), ("mlx5_1", "28.36.1010")) == versions.read(tree.host).firmware


def test_the_loaded_gpu_driver_is_told(tree: trees.Tree) -> None:
    """It comes from the kernel module, whether or not the library can be asked."""
    tree.gpus("0000:1b:00.0")
    tree.write("sys/module/nvidia/version", "570.124.06\n")
    found = versions.read(tree.host)
    assert ("570.124.06", "", "") == (found.gpu_driver, found.gpu_library, found.cuda)


def test_without_the_kernels_version_nothing_is_known(tree: trees.Tree) -> None:
    """A machine that does not tell its kernel is not one whose versions are fine."""
    (tree.root / "proc/sys/kernel/osrelease").write_text("")
    with pytest.raises(contract.Unreadable, match="osrelease: is empty"):
        versions.read(tree.host)
