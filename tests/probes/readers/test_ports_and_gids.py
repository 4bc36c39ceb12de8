"""Words of the kernel as numbers: rates, MTUs, GIDs, CPU lists."""

from pathlib import Path

import pytest

from probes.contract import Host, Unreadable
from probes.readers import gids, numa, ports, sysfs
from tests import hosts


@pytest.mark.parametrize(
    ("rate", "gigabits"),
    [
        ("400 Gb/sec (4X NDR)", 400),
        ("200 Gb/sec (4X HDR)", 200),
        ("800 Gb/sec (4X XDR)", 800),
        ("100 Gb/sec (4X EDR)", 100),
        ("56 Gb/sec (4X FDR)", 54.56),
        ("40 Gb/sec (4X QDR)", 32),
        ("41.25 Gb/sec (4X FDR10)", 40),
        ("20 Gb/sec (4X DDR)", 16),
        ("100 Gb/sec (2X HDR)", 100),
        ("100 Gb/sec (1X NDR)", 100),
        ("1200 Gb/sec (12X NDR)", 1200),
    ],
)
def test_rates_are_data_rates(rate: str, gigabits: float) -> None:
    """Lanes times what a lane carries after encoding, not the signalling rate."""
    found, why = ports.parse_rate(rate)
    assert gigabits * 1e9 == pytest.approx(found)
    assert rate in why


@pytest.mark.parametrize(
    "rate", ["2.5 Gb/sec (1X SDR)", "10 Gb/sec (4X)", "100 Gb/sec (4X ZDR)", "fast", ""]
)
def test_rates_that_say_nothing_are_none_with_a_reason(rate: str) -> None:
    """SDR is what the kernel prints for speeds that it does not know."""
    found, why = ports.parse_rate(rate)
    assert None is found
    assert why


@pytest.mark.parametrize(
    ("netdev", "rdma"),
    [(9000, 4096), (4200, 4096), (4191, 2048), (2200, 2048), (1500, 1024), (576, 256), (100, None)],
)
def test_rdma_mtu_is_what_the_netdev_leaves(netdev: int, rdma: int | None) -> None:
    """The kernel takes 96 bytes of headers off and rounds down to a power of two."""
    assert rdma == ports.roce_mtu(netdev)


def test_a_table_with_a_broken_entry_is_unreadable(tmp_path: Path) -> None:
    """A GID that is none is not skipped."""
    host = hosts.unpack("h100-2x400-ib", tmp_path)
    entry = host.root / "sys/class/infiniband/mlx5_0/ports/1/gids/0"
    entry.write_text("not:a:gid\n")
    with pytest.raises(Unreadable, match="is not a GID: 'not:a:gid'"):
        gids.read(host, "mlx5_0", 1)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("5\n", (5,)), ("\n", ()), ("x-y\n", ())]
)
def test_cpu_lists(tmp_path: Path, text: str, cpus: tuple[int, ...]) -> None:
    """Ranges and single ones; nothing usable is none."""
    folder = tmp_path / "sys/class/infiniband/mlx5_0/device"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(text)
    assert cpus == numa.local_cpus(Host(root=tmp_path), "mlx5_0")
    assert () == numa.local_cpus(Host(root=tmp_path), "rxe0")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\xff", "is not text"),
        (b"a\x00b", "is not text"),
        (b"9" * 5000, "is longer than 4096 bytes"),
        (b"many", "is not a number: 'many'"),
    ],
)
def test_a_number_that_is_none_says_why(tmp_path: Path, content: bytes, why: str) -> None:
    """Path and cause, one line."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(Unreadable) as caught:
        sysfs.number(path)
    assert f"{path}: {why}" == str(caught.value)


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """Nobody writes to it: there is nothing to read, at once."""
    import os  # noqa: PLC0415

    os.mkfifo(tmp_path / "pipe")
    assert "" == sysfs.text(tmp_path / "pipe")


def test_a_real_kernel_file_that_fails_is_named_with_its_error() -> None:
    """EIO of a page that is not mapped; a missing file; a folder."""
    with pytest.raises(Unreadable, match=r"/proc/self/mem: Input/output error \(EIO\)"):
        sysfs.text(Path("/proc/self/mem"))
    with pytest.raises(Unreadable, match="ENOENT"):
        sysfs.text(Path("/proc/self/nothing"))
    with pytest.raises(Unreadable, match="EISDIR"):
        sysfs.text(Path("/proc/self"))
    assert None is sysfs.optional(Path("/proc/self/nothing"))
