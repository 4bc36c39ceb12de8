"""Network cards that could do RDMA and have no RDMA device: a module that was not loaded, or RDMA switched off."""

import dataclasses

from probes.contract import Host
from probes.readers import sysfs

_DEVICES = "/sys/bus/pci/devices"
# Network driver → the module that makes its functions RDMA devices.
_RDMA_MODULES = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "ionic": "ionic_rdma",
}
_NETWORK_CLASS = "0x02"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A PCI network function and the module that would make it an RDMA device."""

    pci: str
    rdma_module: str


def without_rdma(host: Host) -> tuple[Nic, ...]:
    """Functions driven by a driver with an RDMA side, and without an RDMA device.

    Raises:
        Unreadable: a device's class can't be read.
    """
    folder = host.path(_DEVICES)
    found = []
    for address in sysfs.names(folder):
        function = folder / address
        module = _RDMA_MODULES.get(sysfs.link_name(function / "driver") or "")
        if module is None or sysfs.exists(function / "infiniband"):
            continue
        if (sysfs.optional(function / "class") or "").startswith(_NETWORK_CLASS):
            found.append(Nic(pci=address, rdma_module=module))
    return tuple(found)
