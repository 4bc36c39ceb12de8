"""What stands between a program and an RDMA device: character device nodes and provider libraries."""

import dataclasses
import os
from pathlib import Path

from probes.contract import Host
from probes.readers import devices, sysfs

# Kernel driver → stem of the libibverbs provider, where the two differ.
_PROVIDERS = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "rdma_rxe": "rxe",
    "hns3": "hns",
    "qede": "qedr",
    "hfi1": "hfi1verbs",
    "ib_qib": "ipathverbs",
    "ib_mthca": "mthca",
    "be2net": "ocrdma",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`node` is the device node's path, None where ib_uverbs made none; `refused` says why it can't
    be opened, empty when it can. `provider` is the library's file name, None where it was not
    found, empty where it was not looked for.
    """

    node: str | None
    refused: str
    provider: str | None


def access(host: Host, device: devices.Device) -> Access:
    """Tries a device's node, and closes it at once."""
    node = f"/dev/infiniband/{device.uverbs}" if device.uverbs else None
    return Access(
        node=node,
        refused=_refusal(host.path(node)) if node else "",
        # Software RDMA may have any name, and then nothing tells its driver.
        provider=_provider(device.driver) if host.live and device.driver else "",
    )


def _refusal(node: Path) -> str:
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or "error"
    return ""


def _provider(driver: str) -> str | None:
    """File name of the provider in a folder where libibverbs looks."""
    stem = _PROVIDERS.get(driver, driver)
    folders = [*Path("/usr/lib").glob("*/libibverbs"), Path("/usr/lib64/libibverbs")]
    for folder in folders:
        for name in sysfs.names(folder):
            if name.startswith(f"lib{stem}-rdmav"):
                return name
    return None
