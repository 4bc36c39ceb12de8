"""The PCIe path: the narrowest link decides, and links that can't be believed do not."""

from pathlib import Path

import pytest

from probes.contract import Host
from probes.readers import pci
from tests import hosts

NIC = "0000:18:00.0"
_FOLDER = "sys/devices/pci0000:15/0000:15:01.0"
_SWITCH = f"{_FOLDER}/0000:16:00.0/0000:16:02.0"
GIGA = 1e9


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A Gen5 x16 NIC behind a switch: four links to the root."""
    return hosts.unpack("h200-8x400-roce", tmp_path)


def write(host: Host, path: str, text: str) -> None:
    """Changes one file."""
    (host.root / path).write_text(text + "\n")


def gigabits(host: Host, address: str = NIC) -> float | None:
    """Payload rate of a path."""
    found = pci.path(host, address).payload_bits_per_second
    return None if found is None else found / GIGA


def test_gen5_x16_leaves_458_gigabits_for_payload(host: Host) -> None:
    """504 Gb/s after encoding, times 256 / 282 for TLPs of 256 bytes."""
    found = pci.path(host, NIC)
    assert 4 == len(found.links)
    assert 32 * 16 * 128 / 130 * 256 / 282 == pytest.approx(gigabits(host))
    assert "32 GT/s x16 at 0000:18:00.0, 256 B payload" == found.why


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("16.0 GT/s PCIe", "16", 228.8),
        ("8 GT/s", "8", 57.2),
        ("5.0 GT/s PCIe", "4", 14.5),
        ("32.0 GT/s PCIe", "8", 228.8),
        ("64.0 GT/s PCIe", "16", 457.6),
    ],
)
def test_the_narrowest_link_decides_wherever_it_is(
    host: Host, speed: str, width: str, expected: float
) -> None:
    """A switch's upstream link that trained down limits every NIC below it."""
    write(host, f"{_SWITCH}/current_link_speed", speed)
    write(host, f"{_SWITCH}/current_link_width", width)
    assert expected == pytest.approx(gigabits(host), abs=0.1)


def test_a_link_that_trained_down_to_gen1_is_believed(host: Host) -> None:
    """2.5 GT/s where the hardware can do more is a fault, not a made-up bridge."""
    write(host, f"{_SWITCH}/current_link_speed", "2.5 GT/s PCIe")
    assert 29.0 == pytest.approx(gigabits(host), abs=0.1)


def test_a_virtual_topology_is_not_believed(tmp_path: Path) -> None:
    """Unknown speeds and bridges of 2.5 GT/s at most say nothing about the NIC; both are named."""
    found = pci.path(hosts.unpack("vm-efa-and-vf", tmp_path), "0000:01:00.0")
    assert (None, ()) == (found.payload_bits_per_second, found.links)
    assert "0000:01:00.0 tells no link speed" in found.why
    assert "0000:00:02.0 says 2.5 GT/s at most" in found.why


def test_a_virtual_function_has_the_path_of_its_physical_one(host: Host) -> None:
    """Its own files say Unknown; the physical one's link is the narrowest of the path."""
    write(host, f"{_SWITCH}/{NIC}/current_link_width", "8")
    virtual = host.root / f"{_SWITCH}/0000:18:01.0"
    virtual.mkdir()
    (virtual / "physfn").symlink_to("../0000:18:00.0")
    (host.root / "sys/bus/pci/devices/0000:18:01.0").symlink_to(virtual)
    assert 228.8 == pytest.approx(gigabits(host, "0000:18:01.0"), abs=0.1)


@pytest.mark.parametrize(
    ("code", "payload", "expected"), [(0, 128, 419), (1, 256, 457), (2, 512, 479)]
)
def test_the_payload_size_is_that_of_the_device(
    host: Host, code: int, payload: int, expected: float
) -> None:
    """Of the device control register in configuration space, behind another capability."""
    config = bytearray(256)
    config[0x34] = 0x40
    config[0x40:0x42] = (0x11, 0x60)
    config[0x60:0x62] = (0x10, 0x00)
    config[0x68] = code << 5
    (host.root / f"{_SWITCH}/{NIC}/config").write_bytes(config)
    assert f"{payload} B payload" in pci.path(host, NIC).why
    assert expected == pytest.approx(gigabits(host), abs=1)


@pytest.mark.parametrize(
    "config", [b"", b"\xff" * 64, bytes([0x40] * 256)], ids=["empty", "short", "loop"]
)
def test_configuration_space_that_makes_no_sense_is_the_default(host: Host, config: bytes) -> None:
    """Unprivileged readers see 64 bytes; a list that points at itself ends."""
    (host.root / f"{_SWITCH}/{NIC}/config").write_bytes(config)
    assert "256 B payload" in pci.path(host, NIC).why


def test_what_cannot_be_read_is_a_reason_and_no_rate(host: Host) -> None:
    """A rate can be judged without PCIe, so this never raises."""
    assert "0000:99:00.0 is not in sysfs" == pci.path(host, "0000:99:00.0").why
    speed = host.root / f"{_SWITCH}/current_link_speed"
    speed.unlink()
    speed.symlink_to("/proc/self/mem")
    assert "Input/output error (EIO)" in pci.path(host, NIC).why
    assert None is gigabits(host)
