"""Notices that a port's state changed, without holding any driver's file open.

Two senses: rtnetlink messages of the network devices that belong to RDMA ports (milliseconds), and
the state files in sysfs, which the caller looks at each second (InfiniBand ports have no network
device, and a message can be lost).
"""

import contextlib
import os
import socket
import struct
from pathlib import Path

from probes.contract import Host

_RTMGRP_LINK = 0x1
_RTMGRP_IPV4_IFADDR = 0x10
_RTMGRP_IPV6_IFADDR = 0x100
_STATE_FILES = ("state", "phys_state", "counters/link_downed", "hw_counters/link_downed")
_MAX_BYTES = 256
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_BODY_INDEX_OFFSET = 4  # ifinfomsg.ifi_index and ifaddrmsg.ifa_index stand at the same place
_RTM_NEWADDR, _RTM_DELADDR = 20, 21


class Watcher:
    """Remembers how every port looked, and says which look different now.

    Without netlink (a kernel or sandbox that refuses the socket) only the looks remain; `fileno()`
    is then -1.
    """

    def __init__(self, host: Host) -> None:
        self._infiniband = host.path("/sys/class/infiniband")
        self._seen = self._states()
        self._addressed: set[int] = set()
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._socket = socket.socket(
                socket.AF_NETLINK,
                socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
                socket.NETLINK_ROUTE,
            )
            self._socket.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))

    def fileno(self) -> int:
        """For select: readable when a network device or address changed."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """Stops listening."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def drain(self) -> None:
        """Takes all waiting messages. What they say is not trusted; they only say where to look."""
        if self._socket is None:
            return
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except (
                OSError
            ):  # ENOBUFS: messages were lost, the look that follows finds what they said
                continue
            self._addressed |= _address_indexes(data)

    def look(self) -> tuple[str, ...]:
        """Ports (`mlx5_0/1`) that differ from the last look, that came or went, or whose addresses changed."""
        now = self._states()
        before, self._seen = self._seen, now
        changed = {port for port in before.keys() | now.keys() if before.get(port) != now.get(port)}
        if self._addressed:
            changed |= self._ports_of(self._addressed)
            self._addressed = set()
        return tuple(sorted(changed))

    def _states(self) -> dict[str, tuple[bytes | None, ...]]:
        return {
            f"{port.parent.parent.name}/{port.name}": tuple(
                _peek(port / name) for name in _STATE_FILES
            )
            for port in self._infiniband.glob("*/ports/*")
        }

    def _ports_of(self, indexes: set[int]) -> set[str]:
        """Ports whose first GID entry belongs to one of these network devices."""
        names = set()
        for index in indexes:
            with contextlib.suppress(OSError):
                names.add(socket.if_indextoname(index).encode())
        return {
            f"{port.parent.parent.name}/{port.name}"
            for port in self._infiniband.glob("*/ports/*")
            if (_peek(port / "gid_attrs/ndevs/0") or b"").strip() in names
        }


def _address_indexes(data: bytes) -> set[int]:
    """Interface indexes of the address messages in a netlink datagram."""
    found = set()
    offset = 0
    while offset + _HEADER.size + 8 <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            break
        if kind in {_RTM_NEWADDR, _RTM_DELADDR}:
            found.add(struct.unpack_from("=I", data, offset + _HEADER.size + _BODY_INDEX_OFFSET)[0])
        offset += (length + 3) & ~3
    return found


def _peek(path: Path) -> bytes | None:
    """The first bytes of a file, None where there are none to read: absence is a state too."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, _MAX_BYTES)
    except OSError:
        return None
    finally:
        os.close(handle)
