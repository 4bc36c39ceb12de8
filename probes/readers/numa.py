"""Runs a piece of work on the CPUs next to a device, so that its buffers lie in that NUMA node's memory."""

import contextlib
from collections.abc import Iterator

import psutil

from probes.contract import Host

_MAX_BYTES = 4096


def local_cpus(host: Host, device: str) -> tuple[int, ...]:
    """CPUs of the device's NUMA node; none where the device has no place on a bus (software RDMA) or says nothing."""
    path = host.path(f"/sys/class/infiniband/{device}/device/local_cpulist")
    try:
        with path.open(encoding="ascii") as file:
            return _parse(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return ()


def _parse(text: str) -> tuple[int, ...]:
    """`0-3,8` as numbers."""
    cpus: list[int] = []
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


@contextlib.contextmanager
def near(host: Host, device: str) -> Iterator[bool]:
    """Keeps this process on the device's CPUs; False where that can't be done and it runs anywhere."""
    process = psutil.Process()
    before = process.cpu_affinity()
    allowed = sorted(set(local_cpus(host, device)) & set(before or ()))
    try:
        if allowed:
            process.cpu_affinity(allowed)
        yield bool(allowed)
    finally:
        if allowed and before:
            process.cpu_affinity(before)
