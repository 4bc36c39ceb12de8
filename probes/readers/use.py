"""Whether a job uses an RDMA port right now: its queue pairs, and the traffic that the port's own counters show."""

import dataclasses
import re
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from probes.contract import Host, Unreadable
from probes.readers import counters, rdma_netlink

SAMPLE_SECONDS = 0.5
SUSTAINED_SECONDS = 3.0
BUSY_SHARE_OF_RATE = 0.05

# A queue pair of a service of the machine itself (a monitoring daemon) is no job's. Everything else
# is taken for one: a pod, a Slurm step, a person's perftest, and whatever hides its process from
# us.
_MACHINE_SERVICE = re.compile(r"^/system\.slice/[^/]+\.service$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortUse:
    """`holders` are programs with queue pairs (`python (pid 4711)`); `bits_per_second` is the
    traffic that stayed above the threshold for `SUSTAINED_SECONDS`, None where it did not or the
    port counts none. `blind` says why the queue pairs could not be listed: such a port is spared as
    one in use is.
    """

    holders: tuple[str, ...] = ()
    bits_per_second: float | None = None
    blind: str = ""

    @property
    def why(self) -> str:
        """Why the port is busy, empty when it is not."""
        if self.blind:
            return f"can't tell whether it is in use ({self.blind})"
        if self.holders:
            return f"in use by {', '.join(self.holders)}"
        if self.bits_per_second is not None:
            return f"carries {self.bits_per_second / 1e9:.3g} Gb/s"
        return ""


def of_ports(
    host: Host, rates: Mapping[tuple[str, int], float | None]
) -> dict[tuple[str, int], PortUse]:
    """Use of each port.

    Takes one sample (0.5 s) when nothing moves, and 3 s only while some port stays above 5 % of its
    rate.

    Args:
        host: the machine; live, since queue pairs are only known to the running kernel.
        rates: data rate of each (device, port) in bits per second, None where unknown: traffic is
            then not judged.
    """
    traffic = _sustained(host, {key: rate for key, rate in rates.items() if rate})
    found = {}
    for device, port in rates:
        try:
            holders, blind = _holders(device, port), ""
        except Unreadable as error:
            holders, blind = (), str(error)
        found[device, port] = PortUse(
            holders=holders, bits_per_second=traffic.get((device, port)), blind=blind
        )
    return found


def _sustained(host: Host, rates: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """Ports whose every sample was above the threshold, with the lowest of them."""
    candidates = {key: counters.snapshot(host, *key) for key in rates}
    candidates = {
        key: taken for key, taken in candidates.items() if taken.transmitted_bytes is not None
    }
    lowest: dict[tuple[str, int], float] = {}
    deadline = time.monotonic() + SUSTAINED_SECONDS
    while candidates and time.monotonic() < deadline:
        time.sleep(SAMPLE_SECONDS)
        for key, before in list(candidates.items()):
            after = counters.snapshot(host, *key)
            rate = counters.bits_per_second(before, after)
            if rate is None or rate < BUSY_SHARE_OF_RATE * rates[key]:
                del candidates[key]
                continue
            candidates[key] = after
            lowest[key] = min(rate, lowest.get(key, rate))
    return {key: lowest[key] for key in candidates}


def _holders(device: str, port: int) -> tuple[str, ...]:
    """Programs that hold queue pairs on a port, without this process and services of the machine itself."""
    threads = {
        pair.pid
        for pair in rdma_netlink.user_queue_pairs(device)
        if pair.port in {port, None} and not _is_own(pair.pid)
    }
    return tuple(sorted(_name(thread) for thread in threads if not _is_machine_service(thread)))


def _is_own(thread: int | None) -> bool:
    return thread is not None and Path(f"/proc/self/task/{thread}").exists()


def _is_machine_service(thread: int | None) -> bool:
    """By cgroup; `/proc/TID` works for a thread as for a process."""
    try:
        lines = Path(f"/proc/{thread}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    groups = {line.split(":", 2)[-1] for line in lines} - {"/"}
    return bool(groups) and all(_MACHINE_SERVICE.match(group) for group in groups)


def _name(thread: int | None) -> str:
    if thread is None:
        return "a program in another PID namespace"
    try:
        process = psutil.Process(thread)
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {thread}"
