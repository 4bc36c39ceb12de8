"""Who uses a device's queue pairs, from the kernel's RDMA netlink (what `rdma resource show qp`
prints).

No Python library speaks this protocol. Numbers are those of <rdma/rdma_netlink.h>; they are kernel
ABI and never change. A dump costs one firmware command per queue pair on some HCAs, so callers ask
before a measurement, not each second.
"""

import contextlib
import dataclasses
import errno
import os
import socket
import struct
from collections.abc import Iterator

from probes.contract import Unreadable

_NETLINK_RDMA = 20
_CLIENT_NLDEV = 5
_CMD_GET, _CMD_RES_QP = 1, 10
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_RES_QP, _RES_LQPN, _RES_PID, _RES_KERN_NAME = 19, 21, 28, 29
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_DUMP_INTERRUPTED = 0x10
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_TIMEOUT_SECONDS = 5.0
_RECEIVE_BYTES = 1 << 17
# QP 0 and 1 (SMI, GSI) belong to the kernel on every port.
_FIRST_USER_QP = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuePair:
    """A queue pair of a user-space program. `port` is None while it has none (state RESET), `pid`
    (the thread that made it) is None where this process may not see it.
    """

    number: int
    port: int | None
    pid: int | None


def user_queue_pairs(device: str) -> tuple[QueuePair, ...]:
    """Queue pairs on a device that were made by programs; the kernel's own (GSI, IPoIB, storage)
    are left out.

    Raises:
        Unreadable: the kernel does not tell (too old, no RDMA netlink, or the device is gone).
    """
    try:
        with contextlib.closing(_Netlink()) as netlink:
            index = next((i for i, name in netlink.devices() if name == device), None)
            if index is None:
                raise Unreadable(f"rdma netlink: {device}", "no such device")
            return tuple(netlink.queue_pairs(index))
    except (OSError, struct.error) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise Unreadable(f"rdma netlink: {device}", why) from error


class _Netlink:
    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_RDMA
        )
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Ends the conversation."""
        self._socket.close()

    def devices(self) -> list[tuple[int, str]]:
        """Index and name of each device."""
        found = []
        for message in self._dump(_CMD_GET, b""):
            attributes = dict(_attributes(message))
            name = attributes[_DEV_NAME].rstrip(b"\0").decode()
            found.append((_u32(attributes[_DEV_INDEX]), name))
        return found

    def queue_pairs(self, index: int) -> list[QueuePair]:
        """Those of user-space programs."""
        found = []
        for message in self._dump(_CMD_RES_QP, _attribute_u32(_DEV_INDEX, index)):
            for kind, table in _attributes(message):
                if kind == _RES_QP:
                    entries = [dict(_attributes(entry)) for _, entry in _attributes(table)]
                    found += [_queue_pair(entry) for entry in entries if _by_user(entry)]
        return found

    def _dump(self, command: int, body: bytes) -> list[bytes]:
        """All payloads of a dump; asked again when the kernel says that the table changed meanwhile."""
        for _ in range(3):
            payloads, interrupted = self._dump_once(command, body)
            if not interrupted:
                break
        return payloads

    def _dump_once(self, command: int, body: bytes) -> tuple[list[bytes], bool]:
        self._sequence += 1
        kind = (_CLIENT_NLDEV << 10) + command
        header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, self._sequence, 0)
        self._socket.send(header + body)
        payloads: list[bytes] = []
        interrupted = False
        while True:
            for kind, flags, payload in self._receive():
                interrupted |= bool(flags & _DUMP_INTERRUPTED)
                if kind in {_ERROR, _DONE}:
                    code = struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0  # noqa: PLR2004
                    if code < 0:
                        raise OSError(-code, os.strerror(-code))
                    return payloads, interrupted
                payloads.append(payload)

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        """Kind, flags and payload of each message in one datagram that answers the current request."""
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
            if length < _HEADER.size:
                raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
            if sequence == self._sequence:
                yield kind, flags, data[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3


def _by_user(entry: dict[int, bytes]) -> bool:
    return _RES_KERN_NAME not in entry and _u32(entry.get(_RES_LQPN, b"")) >= _FIRST_USER_QP


def _queue_pair(entry: dict[int, bytes]) -> QueuePair:
    return QueuePair(
        number=_u32(entry[_RES_LQPN]),
        port=_u32(entry.get(_PORT_INDEX, b"")) or None,
        pid=_u32(entry.get(_RES_PID, b"")) or None,
    )


def _u32(value: bytes) -> int:
    return int.from_bytes(value[:4], "little" if struct.pack("=H", 1) == b"\1\0" else "big")


def _attribute_u32(kind: int, value: int) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + 4, kind) + struct.pack("=I", value)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute; a malformed tail ends the walk."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
