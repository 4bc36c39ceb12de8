"""GPUs as PCI shows them, whether or not a driver drives them."""

from probes.contract import Host
from probes.readers import sysfs

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
# VGA and 3D controllers; NVIDIA's other functions (audio, USB, NVSwitch bridges) are no GPUs.
_CLASSES = ("0x0300", "0x0302")


def on_pci(host: Host) -> tuple[str, ...]:
    """PCI addresses of the GPUs.

    Raises:
        Unreadable: a device's vendor or class can't be read.
    """
    folder = host.path(_DEVICES)
    return tuple(
        address
        for address in sysfs.names(folder)
        if sysfs.optional(folder / address / "vendor") == _NVIDIA
        and (sysfs.optional(folder / address / "class") or "").startswith(_CLASSES)
    )


def driver_version(host: Host) -> str | None:
    """Version of the loaded kernel driver; None where none is loaded."""
    return sysfs.optional(host.path("/sys/module/nvidia/version"))
