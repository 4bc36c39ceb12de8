"""Versions: told as notes, held against the approved ones, and against each other."""

import pytest

from probes import contract
from probes.inventory import versions
from probes.readers import versions as reader
from tests.probes.inventory import trees

_FAIL, _PASS = contract.Outcome.FAIL, contract.Outcome.PASS


def facts(**changes: object) -> reader.Versions:
    """An H200 node's versions, with changes."""
    values: dict[str, object] = {
        "kernel": "6.8.0-60-generic",
        "rdma_stack": "OFED 24.10-1.1.4",
        "libibverbs": "50.0",
        "firmware": (("mlx5_0", "28.43.2026"), ("mlx5_1", "28.43.2026")),
        "gpu_driver": "570.124.06",
        "gpu_library": "570.124.06",
        "cuda": "12.8",
        **changes,
    }
    return reader.Versions(**values)  # type: ignore[arg-type]


_APPROVED: dict[str, tuple[str, ...]] = {
    "kernel": ("6.8.0-60-generic", "6.8.0-64-generic"),
    "rdma_stack": ("OFED 24.10-1.1.4",),
    "firmware": ("28.43.2026",),
    "gpu_driver": ("570.124.06",),
}


@pytest.mark.parametrize(
    ("changes", "limits", "reason", "message"),
    [
        ({}, {}, "VersionsKnown", "kernel 6.8.0-60-generic, RDMA stack OFED 24.10-1.1.4"),
        ({}, _APPROVED, "VersionsKnown", "kernel 6.8.0-60-generic, RDMA stack OFED 24.10-1.1.4"),
        ({"gpu_library": "580.10"}, {}, "DriverLibraryMismatch",
         "nvidia kernel module 570.124.06, but its library says 580.10: reload the module or reboot"),
        ({"gpu_library": ""}, {}, "VersionsKnown", "kernel 6.8.0-60-generic, RDMA stack OFED 24.10-1.1.4"),
        ({"gpu_driver": ""}, _APPROVED, "VersionsKnown", "kernel 6.8.0-60-generic, RDMA stack OFED 24.10-1.1.4"),
        ({"kernel": "6.1.0"}, _APPROVED, "VersionNotApproved",
         "kernel is 6.1.0, approved: 6.8.0-60-generic, 6.8.0-64-generic (default)"),
        ({"rdma_stack": "inbox"}, _APPROVED, "VersionNotApproved",
         "RDMA stack is inbox, approved: OFED 24.10-1.1.4 (default)"),
        ({"firmware": (("mlx5_0", "28.43.2026"), ("mlx5_1", "28.36.1010"))}, _APPROVED, "VersionNotApproved",
         "firmware of mlx5_1 is 28.36.1010, approved: 28.43.2026 (profile h200)"),
        ({"firmware": (("mlx5_0", ""),)}, _APPROVED, "VersionNotApproved",
         "firmware of mlx5_0 is not told, approved: 28.43.2026 (profile h200)"),
        ({"firmware": (("rxe0", "0.0.0"),)}, _APPROVED, "VersionsKnown",
         "kernel 6.8.0-60-generic, RDMA stack OFED 24.10-1.1.4"),
        ({"gpu_driver": "1", "gpu_library": "1", "kernel": "2"}, {"kernel": ("3",), "gpu_driver": ("4",)},
         "VersionNotApproved",
         "kernel is 2, approved: 3 (default); GPU driver is 1, approved: 4 (default)"),
    ],
)  # fmt: skip
def test_judge(
    changes: dict[str, object], limits: dict[str, tuple[str, ...]], reason: str, message: str
) -> None:
    """A mismatch fails whatever is approved; what is approved names each version that is not."""
    known = versions.Limits(origins={"firmware": "profile h200"}, **limits)

    verdict = versions.judge(facts(**changes), known)

    assert (_PASS if reason == "VersionsKnown" else _FAIL) is verdict.outcome
    assert (reason, message) == (verdict.reason, verdict.message)


def test_every_known_version_is_told() -> None:
    """What a person compares across nodes is in the notes; what is not here takes no room."""
    assert {
        "kernel": "6.8.0-60-generic",
        "rdma_stack": "OFED 24.10-1.1.4",
        "libibverbs": "50.0",
        "gpu_driver": "570.124.06",
        "firmware_mlx5_0": "28.43.2026",
        "firmware_mlx5_1": "28.43.2026",
    } == versions.judge(facts(cuda=""), versions.Limits()).notes


def test_a_machine_is_read_and_judged(tree: trees.Tree) -> None:
    """The reader's facts are the judge's: an upgraded firmware on one card is found in the files."""
    tree.rdma("mlx5_0", "0000:1a:00.0")
    tree.rdma("mlx5_1", "0000:5c:00.0", firmware="28.99.1")

    verdict = versions.PROBE.judge(
        versions.PROBE.read(tree.host), versions.Limits(firmware=("28.43.2026",))
    )

    assert "VersionNotApproved" == verdict.reason
    assert "firmware of mlx5_1 is 28.99.1, approved: 28.43.2026 (default)" == verdict.message
