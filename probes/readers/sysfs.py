"""Small kernel text files, read with suspicion: a file may be absent, empty, binary, huge, or fail to read."""

import errno
import os
from pathlib import Path

from probes.contract import Unreadable

LIMIT_BYTES = 4096


def text(path: Path, limit: int = LIMIT_BYTES) -> str:
    """The file's text without surrounding white space; may be empty.

    Raises:
        Unreadable: missing, not a file, binary, longer than `limit` bytes, or the kernel refuses
            (EINVAL, EIO, EACCES).
    """
    try:
        # Never block on what only looks like a file, and never follow it further than `limit`.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(handle, limit + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise Unreadable(path, _cause(error)) from error
    if len(data) > limit:
        raise Unreadable(path, f"is longer than {limit} bytes")
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(path, "is not text") from error
    if "\0" in decoded:
        raise Unreadable(path, "is not text")
    return decoded.strip()


def value(path: Path) -> str:
    """Text that must say something.

    Raises:
        Unreadable: as `text`, or empty.
    """
    found = text(path)
    if not found:
        raise Unreadable(path, "is empty")
    return found


def optional(path: Path) -> str | None:
    """Text of a file that may be absent; None then. What is there and can't be read still raises.

    Raises:
        Unreadable: it is there and can't be read.
    """
    return text(path) if exists(path) else None


def number(path: Path) -> int:
    """A decimal or 0x number.

    Raises:
        Unreadable: as `value`, or it is none.
    """
    found = value(path)
    try:
        return int(found, 0)
    except ValueError as error:
        raise Unreadable(path, f"is not a number: {found[:40]!r}") from error


def names(path: Path) -> tuple[str, ...]:
    """Entries of a folder, sorted; none where it does not exist.

    Raises:
        Unreadable: it is there and can't be listed.
    """
    try:
        return tuple(sorted(os.listdir(path)))  # noqa: PTH208  (names are wanted, not paths)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise Unreadable(path, _cause(error)) from error


def exists(path: Path) -> bool:
    """Whether there is something; a link that leads nowhere is nothing.

    Raises:
        Unreadable: the kernel does not say.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Unreadable(path, _cause(error)) from error
    return True


def link_name(path: Path) -> str | None:
    """The last part of where a symbolic link points (`driver` → `mlx5_core`); None where there is no link."""
    try:
        return Path(os.readlink(path)).name  # noqa: PTH115  (the text of the link, not a resolved path)
    except OSError:
        return None


def _cause(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "error")
    return f"{error.strerror} ({name})"
