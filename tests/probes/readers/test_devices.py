"""Devices as sysfs shows them: on a bus, without one, virtual, and captured from a real machine."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from probes.contract import Host, Unreadable
from probes.readers import devices, gids, ports, sysfs, userspace
from tests import hosts

RXE = "sys/class/infiniband/rxe0"


def named(host: Host, name: str) -> devices.Device:
    """One device of a machine."""
    return next(device for device in devices.read(host) if device.name == name)


def test_a_nic_has_address_driver_firmware_and_netdev(tmp_path: Path) -> None:
    """All that the other parts ask of a device on a bus."""
    nic = named(hosts.unpack("h200-8x400-roce", tmp_path), "mlx5_0")
    assert ("0000:18:00.0", "mlx5_core", "15b3:1021") == (
        nic.pci, nic.driver, nic.pci_vendor_device,
    )  # fmt: skip
    assert ("CA", "28.43.2026", "MT_0000000838", 0) == (
        nic.node_type, nic.firmware, nic.board, nic.numa_node,
    )  # fmt: skip
    assert (("rail0",), (1,), "uverbs0", 1) == (nic.netdevs, nic.ports, nic.uverbs, nic.abi)
    assert not nic.software
    assert not nic.virtual_function


def test_a_function_of_another_one_is_virtual(tmp_path: Path) -> None:
    """`physfn` says so; without NUMA there is no node."""
    host = hosts.unpack("vm-efa-and-vf", tmp_path)
    assert not named(host, "mlx5_0").virtual_function
    (host.root / "sys/class/infiniband/mlx5_0/device/physfn").symlink_to("../0000:01:00.0")
    nic = named(host, "mlx5_0")
    assert nic.virtual_function
    assert None is nic.numa_node


def test_software_rdma_has_a_parent_and_no_bus(tmp_path: Path) -> None:
    """Its rate says nothing, its network device is the one it was put on, and its GIDs are real."""
    host = hosts.unpack("soft-roce", tmp_path)
    rxe = named(host, "rxe0")
    assert (True, None, "", "rdma_rxe", ("eth1",)) == (
        rxe.software, rxe.pci, rxe.pci_vendor_device, rxe.driver, rxe.netdevs,
    )  # fmt: skip
    (port,) = ports.read(host, rxe)
    assert (True, "Ethernet", "eth1", 4096) == (
        port.active, port.link_layer, port.netdev, port.mtu_bytes,
    )  # fmt: skip
    assert None is port.data_bits_per_second
    assert "software RDMA has no rate of its own" == port.rate_why
    chosen = gids.best(gids.read(host, "rxe0", 1), "Ethernet")
    assert chosen is not None
    assert (gids.ROCE_V2, True) == (chosen.kind, chosen.ipv4)


def test_a_device_with_nothing_but_a_name_is_still_one(tmp_path: Path) -> None:
    """Software RDMA of any name, without parent and ports."""
    (tmp_path / "sys/class/infiniband/roce9").mkdir(parents=True)
    found = named(Host(root=tmp_path), "roce9")
    assert (True, "", (), (), None) == (
        found.software, found.driver, found.netdevs, found.ports, found.uverbs,
    )  # fmt: skip


def test_a_driver_that_nothing_names_has_no_provider_to_miss(tmp_path: Path) -> None:
    """`rdma link add roce9 type rxe` is no broken installation."""
    (tmp_path / "sys/class/infiniband/roce9").mkdir(parents=True)
    unnamed = named(Host(root=tmp_path), "roce9")
    assert "" == userspace.access(Host(), unnamed).provider
    foreign = dataclasses.replace(unnamed, driver="nobody_makes_this")
    assert None is userspace.access(Host(), foreign).provider


@pytest.mark.parametrize("file", ["node_type", "node_guid", "fw_ver", "parent"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, file: str) -> None:
    """What is there and fails is never taken for absent."""
    host = hosts.unpack("soft-roce", tmp_path)
    (host.root / RXE / file).unlink()
    (host.root / RXE / file).symlink_to("/proc/self/mem")
    with pytest.raises(Unreadable, match=f"rxe0/{file}: Input/output error"):
        devices.read(host)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """A file where the kernel has a folder; a link that leads to itself."""
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("")
    with pytest.raises(Unreadable, match=r"sys/class/infiniband: .*ENOTDIR"):
        devices.names(Host(root=tmp_path))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Unreadable, match="ELOOP"):
        sysfs.exists(tmp_path / "loop")


def test_an_iwarp_or_addressless_port_has_no_netdev_and_no_mtu(tmp_path: Path) -> None:
    """No GID names a network device and the function has two: nobody can tell which."""
    host = hosts.unpack("vm-efa-and-vf", tmp_path)
    (host.root / "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0").unlink()
    nic = named(host, "mlx5_0")
    assert "eth1" == ports.read(host, nic)[0].netdev
    (port,) = ports.read(host, dataclasses.replace(nic, netdevs=("eth1", "eth2")))
    assert (None, None, None) == (port.netdev, port.netdev_mtu, port.mtu_bytes)
    assert "as SDR" in port.rate_why


@pytest.mark.parametrize("speed", ["-1", "0", "what"])
def test_a_netdev_without_a_speed_leaves_the_ports_own(tmp_path: Path, speed: str) -> None:
    """-1 is a link that is down or a driver that does not know."""
    host = hosts.unpack("h200-8x400-roce", tmp_path)
    (host.root / "sys/class/net/rail0/speed").write_text(speed + "\n")
    port = ports.read(host, named(host, "mlx5_0"))[0]
    assert (4e11, "rate 400 Gb/sec (4X NDR)") == (port.data_bits_per_second, port.rate_why)


@pytest.mark.in_guest
def test_a_captured_machine_reads_as_the_machine_itself(tmp_path: Path) -> None:
    """Devices, ports and GIDs of a real kernel, through `capture.py` and back."""
    text = subprocess.run(
        (sys.executable, hosts.__path__[0] + "/capture.py"),
        check=True, capture_output=True, text=True, timeout=30,
    ).stdout  # fmt: skip
    captured, live = hosts.unpack_text(text, tmp_path, name="capture"), Host()
    assert ("rxe0",) == devices.names(captured)
    assert devices.read(live) == devices.read(captured)
    rxe = named(live, "rxe0")
    assert ports.read(live, rxe) == ports.read(captured, rxe)
    assert gids.read(live, "rxe0", 1) == gids.read(captured, "rxe0", 1)
    assert (tmp_path / "dev/infiniband/uverbs0").exists()


@pytest.mark.in_guest
@pytest.mark.parametrize(
    ("driver", "library"),
    [
        ("mlx5_core", "libmlx5"), ("mlx4_core", "libmlx4"), ("bnxt_en", "libbnxt_re"), ("ice", "libirdma"),
        ("efa", "libefa"), ("rdma_rxe", "librxe"), ("siw", "libsiw"), ("hfi1", "libhfi1verbs"),
        ("ib_qib", "libipathverbs"), ("ib_mthca", "libmthca"), ("be2net", "libocrdma"), ("hns3", "libhns"),
        ("qede", "libqedr"), ("erdma", "liberdma"), ("cxgb4", "libcxgb4"), ("vmw_pvrdma", "libvmw_pvrdma"),
    ],
)  # fmt: skip
def test_every_kernel_driver_has_its_library(driver: str, library: str) -> None:
    """The distribution's own files, by the names that it gives them."""
    device = dataclasses.replace(named(Host(), "rxe0"), driver=driver, uverbs=None)
    found = userspace.access(Host(), device).provider
    assert found is not None
    assert found.startswith(f"{library}-rdmav")
