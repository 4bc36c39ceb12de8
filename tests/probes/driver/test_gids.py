"""GID tables: which entry connections use, and what is poor about it."""

from pathlib import Path
from typing import Any

import pytest

from probes.contract import Host, Outcome, Unreadable, Verdict
from probes.driver import gids
from tests import hosts

H200, IB, VM = "h200-8x400-roce", "h100-2x400-ib", "vm-efa-and-vf"
PORT = "sys/class/infiniband/mlx5_2/ports/1"
RAIL_2 = "0000:0000:0000:0000:0000:ffff:0a64:0207"


def judge(host: Host, **limits: Any) -> Verdict:
    """The verdict on a machine."""
    return gids.judge(gids.read(host), gids.Limits(**limits))


def one(tmp_path: Path, entries: list[tuple[str, str]], *, pinned: int | None = None) -> Verdict:
    """The verdict on a RoCE port with this table of (GID, type)."""
    host = hosts.unpack(H200, tmp_path)
    for index in range(5):
        (host.root / f"{PORT}/gids/{index}").unlink()
    for index, (gid, kind) in enumerate(entries):
        (host.root / f"{PORT}/gids/{index}").write_text(gid + "\n")
        (host.root / f"{PORT}/gid_attrs/types/{index}").write_text(kind + "\n")
    found = gids.judge(gids.read(Host(root=host.root, gid_index=pinned)), gids.Limits())
    return next(part for part in found.parts if part.part == "mlx5_2/1")


V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL = "fe80:0000:0000:0000:ba3f:d2ff:feaa:0200"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0007"
APIPA = "0000:0000:0000:0000:0000:ffff:a9fe:0102"
ZERO = ":".join(["0000"] * 8)


def test_routable_ipv4_over_roce_v2_is_chosen(tmp_path: Path) -> None:
    """Of link-local and IPv4, each as v1 and v2: index 3."""
    verdict = judge(hosts.unpack(H200, tmp_path))
    assert (Outcome.PASS, "GidsUsable", "") == (verdict.outcome, verdict.reason, verdict.warning)
    assert "mlx5_2/1 uses index 3 (RoCE v2, 10.100.2.7)" in verdict.message
    assert 3 == verdict.parts[2].values["gid_index"]


@pytest.mark.parametrize(
    ("entries", "index", "warning"),
    [
        ([(RAIL_2, V1), (RAIL_2, V2)], 1, ""),
        ([(GLOBAL, V2), (RAIL_2, V2)], 1, ""),
        ([(LINK_LOCAL, V2), (GLOBAL, V2)], 1, ""),
        ([(GLOBAL, V2), (GLOBAL, V2)], 0, ""),
        ([(RAIL_2, V1), (LINK_LOCAL, V2)], 1, "GidLinkLocalOnly"),
        ([(APIPA, V2)], 0, "GidLinkLocalOnly"),
        ([(LINK_LOCAL, V1), (RAIL_2, V1)], 1, "NoRoceV2Gid"),
        ([(ZERO, V2), (RAIL_2, V2)], 1, ""),
    ],
)
def test_the_best_entry_by_nccls_order(
    tmp_path: Path, entries: list[tuple[str, str]], index: int, warning: str
) -> None:
    """v2 before v1, routable before link-local, IPv4 before IPv6, then the lowest index."""
    part = one(tmp_path, entries)
    assert (Outcome.PASS, index, warning) == (part.outcome, part.values["gid_index"], part.warning)


@pytest.mark.parametrize("entries", [[], [(ZERO, V2)]])
def test_a_port_without_any_gid_fails(tmp_path: Path, entries: list[tuple[str, str]]) -> None:
    """No address on its network device."""
    part = one(tmp_path, entries)
    assert (Outcome.FAIL, "NoUsableGid") == (part.outcome, part.reason)


def test_a_port_whose_table_is_not_there_is_unreadable(tmp_path: Path) -> None:
    """A tree without `gids` says nothing of addresses: Unknown, and no verdict on the port."""
    host = hosts.unpack(IB, tmp_path)
    (host.root / "sys/class/infiniband/mlx5_0/ports/1/gids").rename(tmp_path / "gone")
    with pytest.raises(Unreadable, match=r"mlx5_0/ports/1/gids: is missing"):
        gids.read(host)


def test_the_pinned_index_is_judged_and_not_the_best_one(tmp_path: Path) -> None:
    """Empty fails and names what would be used; another than the best is a warning; the best is fine."""
    entries = [(LINK_LOCAL, V2), (RAIL_2, V2)]
    for pinned, expected in ((7, "GidIndexNotSet"), (0, "GidIndexPinned"), (1, "")):
        part = one(tmp_path / str(pinned), entries, pinned=pinned)
        assert expected == (part.warning if part.outcome is Outcome.PASS else part.reason)
    assert (
        "index 1 (RoCE v2, 10.100.2.7) would be used"
        in one(tmp_path / "x", entries, pinned=7).message
    )


def test_infiniband_uses_index_0_whatever_is_pinned(tmp_path: Path) -> None:
    """The pin is about RoCE; a port that is down is not asked."""
    host = hosts.unpack(IB, tmp_path)
    found = gids.read(Host(root=host.root, gid_index=3))
    assert ["mlx5_0/1"] == [one.name for one in found]
    assert "mlx5_0/1 uses index 0" in gids.judge(found, gids.Limits()).message


def test_devices_without_a_link_layer_have_their_gid(tmp_path: Path) -> None:
    """EFA's one entry is link-local by design and is no warning; the virtual function's v1 is one."""
    verdict = judge(hosts.unpack(VM, tmp_path))
    warnings = {part.part: part.warning for part in verdict.parts}
    assert {"rdmap0s30/1": "", "mlx5_0/1": "NoRoceV2Gid"} == warnings


def test_no_active_port_is_nothing_to_check(tmp_path: Path) -> None:
    """And so is a node without devices."""
    assert Outcome.SKIP is judge(hosts.unpack("no-rdma", tmp_path)).outcome
    assert Outcome.SKIP is judge(hosts.unpack(IB, tmp_path / "ib"), ignore=("mlx5_0",)).outcome
