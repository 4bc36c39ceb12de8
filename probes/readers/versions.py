"""Versions of what must fit together: kernel, RDMA stack, NIC firmware, GPU driver, CUDA, libibverbs."""

import dataclasses

from probes.contract import Host, Unreadable
from probes.readers import devices, gpus, nvml, sysfs, verbs

# NVIDIA's OFED puts a compatibility module beside the in-kernel ones, and versions on them.
_OFED_MARK = "/sys/module/mlx_compat"
_OFED_VERSIONS = ("/sys/module/mlx_compat/version", "/sys/module/mlx5_core/version")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions as text. Empty where the thing is not there, or does not tell.

    `rdma_stack` is `inbox` or `OFED VERSION`; `firmware` has one entry per RDMA device;
    `gpu_driver` is the loaded kernel module's, `gpu_library` the driver version that NVML reports.
    """

    kernel: str
    rdma_stack: str
    libibverbs: str
    firmware: tuple[tuple[str, str], ...]
    gpu_driver: str
    gpu_library: str
    cuda: str


def read(host: Host) -> Versions:
    """All versions.

    Raises:
        Unreadable: the kernel's own version can't be read.
    """
    library, cuda = _nvml(host)
    return Versions(
        kernel=sysfs.value(host.path("/proc/sys/kernel/osrelease")),
        rdma_stack=_rdma_stack(host),
        libibverbs=_libibverbs(host),
        firmware=tuple((device.name, device.firmware) for device in devices.read(host)),
        gpu_driver=gpus.driver_version(host) or "",
        gpu_library=library,
        cuda=cuda,
    )


def _rdma_stack(host: Host) -> str:
    if not sysfs.exists(host.path(_OFED_MARK)):
        return "inbox"
    versions = (sysfs.optional(host.path(path)) for path in _OFED_VERSIONS)
    return f"OFED {next((version for version in versions if version), '')}".strip()


def _libibverbs(host: Host) -> str:
    if not host.live:
        return ""
    try:
        return verbs.library_version()
    except Unreadable:
        return ""


def _nvml(host: Host) -> tuple[str, str]:
    """Driver version and CUDA version, as NVML tells; empty where it can't be used."""
    if not host.live or not gpus.on_pci(host):
        return "", ""
    try:
        found = nvml.read()
    except Unreadable:
        return "", ""
    return found.driver_version, found.cuda_version
