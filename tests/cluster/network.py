"""The network of a run: one namespace that the whole run lives in, with two bridges for the guests.

The test process itself moves into a new network namespace, and everything that it starts follows.
So nothing of the host's network changes, two runs cannot meet, and nothing is left to clean up. The
way back is closed: what needs the outside (packages, modules, images) is done before.

`br0` (10.9.0.254/24) carries management: kubelets, API server, ssh. `br1` is the fabric,
10.10.0.0/24 between the guests only: pulling a fabric cable leaves the node reachable.
"""

import ctypes
import os
import pathlib

from tests.cluster import cache, processes

GATEWAY = "10.9.0.254"
SERVICE_ADDRESS = "10.96.0.1"
# rxe takes the largest InfiniBand MTU that fits beside its headers: 4096 needs 4096 + 84 bytes at
# least.
FABRIC_MTU = 4500
_TAP_MTU = 9000
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_NAMESPACE = pathlib.Path("/proc/thread-self/ns/net")
_HOME = _NAMESPACE.stat().st_ino


def is_private() -> bool:
    """Whether this process has left the network that it was started in."""
    return _NAMESPACE.stat().st_ino != _HOME


def enter() -> None:
    """Moves this process into a namespace of its own and lays the bridges; once.

    It moves this thread and all that starts from it: call it from the main thread.

    Raises:
        RigError: the kernel refuses the namespace.
    """
    if is_private():
        return
    if _LIBC.unshare(_CLONE_NEWNET) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise cache.RigError(f"cannot make a network namespace ({cause}): run as root, or allow it")
    ip("link set lo up")
    # Pods reach the API server at the service address: it listens on every address of this
    # namespace.
    ip(f"address add {SERVICE_ADDRESS}/32 dev lo")
    for bridge in ("br0", "br1"):
        ip(f"link add {bridge} type bridge forward_delay 0")
        ip(f"link set {bridge} mtu {_TAP_MTU} up")
    ip(f"address add {GATEWAY}/24 dev br0")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def add_tap(name: str, bridge: str) -> None:
    """Makes the host's end of a guest's cable and plugs it into a bridge."""
    ip(f"tuntap add {name} mode tap")
    ip(f"link set {name} mtu {_TAP_MTU} master {bridge} up")


def remove_tap(name: str) -> None:
    """Takes the host's end of a cable away."""
    ip(f"link delete {name}")


def route_pods(number: int) -> None:
    """Sends traffic for the pods of node `number` to that node."""
    ip(f"route replace 10.244.{number}.0/24 via 10.9.0.{number}")


def limit_rate(tap: str, megabits_per_second: float | None) -> None:
    """Limits what a guest receives through a tap; None lifts the limit."""
    if megabits_per_second is None:
        processes.run(*f"tc qdisc del dev {tap} root".split())
        return
    # A long queue: rxe sends all again from a lost packet on, and would fall far below the rate.
    rate = f"{megabits_per_second * 1000:.0f}kbit"
    processes.run(*f"tc qdisc replace dev {tap} root tbf rate {rate} burst 64kb limit 4mb".split())


def ip(arguments: str) -> str:
    """Runs `ip` in this namespace."""
    return processes.run("ip", *arguments.split())
