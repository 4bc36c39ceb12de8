"""What libibverbs shows: devices, ports, and the version of the library.

pyverbs is imported on first use only: a machine without it still gets every answer that sysfs can
give, and one clear "can't be read" for the rest. Every call may hang in a sick driver, so this runs
in a probe's own process and nowhere else.
"""

import contextlib
import dataclasses
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes.contract import Unreadable

_INSTALL = "install the distribution's python3-pyverbs (and ibverbs-providers)"

# ibv_mtu, ibv_port_state and link layer codes of <infiniband/verbs.h>.
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
PORT_ACTIVE = 4
# Made by ib_uverbs when it is loaded.
_CLASS = Path("/sys/class/infiniband_verbs")
INFINIBAND = 1
LINK_LAYERS = {0: "Unspecified", INFINIBAND: "InfiniBand", 2: "Ethernet"}
MAX_GIDS = 1024


class NoVerbs(Unreadable):
    """The kernel offers no verbs at all: ib_uverbs is not loaded."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortAttributes:
    """What a device says of one port. `lid` is 0 on Ethernet."""

    state: int
    link_layer: str
    active_mtu_bytes: int
    lid: int


def modules() -> "Modules":
    """pyverbs, with the names that this version keeps its constants under.

    Raises:
        Unreadable: it is missing or does not fit the machine's libibverbs.
    """
    try:
        import pyverbs.addr  # noqa: PLC0415
        import pyverbs.cq  # noqa: PLC0415
        import pyverbs.device  # noqa: PLC0415
        import pyverbs.mr  # noqa: PLC0415
        import pyverbs.pd  # noqa: PLC0415
        import pyverbs.pyverbs_error  # noqa: PLC0415
        import pyverbs.qp  # noqa: PLC0415
        import pyverbs.wr  # noqa: PLC0415
    except ImportError as error:
        # A pyverbs built for another libibverbs imports as a package and fails in its extensions.
        raise Unreadable("pyverbs", f"{error}: {_INSTALL}") from error
    return Modules(verbs=pyverbs, enums=_enums(), error=pyverbs.pyverbs_error.PyverbsRDMAError)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The parts of pyverbs in use.

    `error` is raised by every failing call and carries `error_code` (errno).
    """

    verbs: Any
    enums: Any
    error: type[Exception]


def _enums() -> Any:
    """The constants: `pyverbs.libibverbs_enums` from rdma-core 50 on, `pyverbs.enums` before 59."""
    try:
        from pyverbs import libibverbs_enums as enums  # noqa: PLC0415

        _ = enums.IBV_ACCESS_LOCAL_WRITE
    except (ImportError, AttributeError):
        from pyverbs import enums  # noqa: PLC0415
    return enums


def device_names() -> tuple[str, ...]:
    """Names of the devices that libibverbs lists, sorted; none where there is no device.

    Raises:
        NoVerbs: the kernel has no ib_uverbs.
        Unreadable: pyverbs is missing, or the list can't be had.
    """
    pyverbs = modules()
    # With ib_core loaded and ib_uverbs not, libibverbs gives an empty list instead of ENOSYS.
    if not _CLASS.exists():
        raise NoVerbs("verbs", "the kernel has no verbs: load ib_uverbs")
    try:
        return tuple(
            sorted(_text(device.name) for device in pyverbs.verbs.device.get_device_list())
        )
    except pyverbs.error as error:
        raise Unreadable("verbs", f"no device list: {describe(error)}") from error


def library_version() -> str:
    """rdma-core's version, from the file name of the loaded libibverbs (`libibverbs.so.1.14.44.0`
    is 44.0).

    Raises:
        Unreadable: it is not loaded or its name says no version.
    """
    modules()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"/libibverbs\.so\.\d+\.\d+\.(\d+\.\d+)", maps)
    if not found:
        raise Unreadable("libibverbs", "its file name carries no version")
    return found[1]


@contextlib.contextmanager
def opened(device: str) -> Iterator[Any]:
    """The device's context, closed again at the end: a standing handle blocks driver upgrades.

    Raises:
        Unreadable: it can't be opened.
    """
    pyverbs = modules()
    try:
        context = pyverbs.verbs.device.Context(name=device)
    except pyverbs.error as error:
        raise Unreadable(device, f"can't be opened: {describe(error)}") from error
    try:
        yield context
    finally:
        context.close()


def port_attributes(context: Any, port: int) -> PortAttributes:
    """What an open device says of a port.

    Raises:
        Unreadable: it says nothing.
    """
    pyverbs = modules()
    try:
        found = context.query_port(port)
    except pyverbs.error as error:
        raise Unreadable(f"port {port}", f"can't be queried: {describe(error)}") from error
    return PortAttributes(
        state=found.state,
        link_layer=LINK_LAYERS.get(found.link_layer, str(found.link_layer)),
        active_mtu_bytes=_MTU_BYTES.get(found.active_mtu, 1024),
        lid=found.lid,
    )


def errno_of(error: Exception) -> int:
    """The errno of a pyverbs error, 0 where it carries none."""
    code = getattr(error, "error_code", 0)
    return code if isinstance(code, int) and code > 0 else 0


def describe(error: Exception) -> str:
    """A pyverbs error in one line, with the errno's name."""
    first = (
        str(error).splitlines()[0].strip().rstrip(".")
        if str(error).strip()
        else type(error).__name__
    )
    code = errno_of(error)
    name = errno.errorcode.get(code)
    return f"{first} ({name}: {os.strerror(code)})" if name and name not in first else first


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
