"""`python3 tests/hosts/capture.py > tests/hosts/NAME.txt`: writes down this machine's kernel files for tests.

Needs nothing but Python. GUIDs, MAC addresses and IP addresses are in the result: look at it before
it leaves your site.
"""

import os
import pathlib
import sys

_ROOT = pathlib.Path("/")
_GLOBS = (
    "proc/sys/kernel/osrelease",
    "sys/class/infiniband/*",
    "sys/class/infiniband_verbs/uverbs*/ibdev",
    "sys/class/infiniband_verbs/uverbs*/abi_version",
    "sys/module/ib_uverbs/refcnt",
    "sys/module/mlx5_core/version",
    "sys/module/mlx_compat/version",
    "sys/module/nvidia/version",
    "sys/class/net/*",
)
_DEVICE_FILES = (
    "node_type", "node_guid", "fw_ver", "hca_type", "board_id", "parent", "device",
    "ports/*/state", "ports/*/phys_state", "ports/*/link_layer", "ports/*/rate", "ports/*/lid", "ports/*/sm_lid",
    "ports/*/gids/*", "ports/*/gid_attrs/types/*", "ports/*/gid_attrs/ndevs/*",
    "ports/*/counters/link_downed", "ports/*/counters/port_xmit_data", "ports/*/counters/port_rcv_data",
    "ports/*/hw_counters/link_downed", "ports/*/hw_counters/sent_pkts", "ports/*/hw_counters/lifespan",
)  # fmt: skip
_NET_FILES = ("mtu", "speed", "operstate")
_PCI_FILES = (
    "vendor", "device", "class", "numa_node", "local_cpulist", "driver", "physfn",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
)  # fmt: skip
_UNSET_GID = ":".join(["0000"] * 8)


def main() -> None:
    """Prints every file once, links before what they lead to."""
    seen: set[pathlib.Path] = set()
    print(f"# Captured on a real machine: kernel {os.uname().release}")
    for pattern in _GLOBS:
        for path in sorted(_ROOT.glob(pattern)):
            folder = _follow(path, seen)
            if pattern.endswith("infiniband/*"):
                _all(folder, _DEVICE_FILES, seen)
                _pci(folder / "device", seen)
            elif pattern.endswith("net/*"):
                _all(folder, _NET_FILES, seen)
            else:
                _file(path, seen)
    # A device node is only there or not: reading it would ask the driver.
    for path in sorted(_ROOT.glob("dev/infiniband/uverbs*")):
        print(f"{path.relative_to(_ROOT)} = ")


def _follow(path: pathlib.Path, seen: set[pathlib.Path]) -> pathlib.Path:
    if not path.is_symlink():
        return path
    if path not in seen:
        seen.add(path)
        print(f"{path.relative_to(_ROOT)} -> {path.readlink()}")
    return path.resolve()


def _all(folder: pathlib.Path, patterns: tuple[str, ...], seen: set[pathlib.Path]) -> None:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if path.is_symlink():
                _follow(path, seen)
            else:
                _file(path, seen)


def _pci(device: pathlib.Path, seen: set[pathlib.Path]) -> None:
    """The function and every bridge above it."""
    if not device.exists():
        return
    function = device.resolve()
    for folder in (function, *function.parents):
        if folder.name.count(":") != 2:
            break
        _all(folder, _PCI_FILES, seen)
    for name in (
        sorted(entry.name for entry in (function / "net").iterdir())
        if (function / "net").exists()
        else ()
    ):
        _all(function / "net" / name, _NET_FILES, seen)


def _file(path: pathlib.Path, seen: set[pathlib.Path]) -> None:
    if path in seen or path.is_dir():
        return
    seen.add(path)
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        if "gid_attrs" not in str(path):  # the kernel's way to say that an entry is not set
            print(f"# {path.relative_to(_ROOT)}: {error}", file=sys.stderr)
        return
    if text != _UNSET_GID and "\n" not in text:
        print(f"{path.relative_to(_ROOT)} = {text}")


if __name__ == "__main__":
    main()
