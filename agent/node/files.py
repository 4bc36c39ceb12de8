"""Files that others read while we write them."""

import contextlib
import errno
import os
import stat
from pathlib import Path


def read(path: Path, limit: int) -> bytes:
    """The start of a file of our own: never through a link, and never waiting for somebody to write.

    Raises:
        OSError: there is none, or it is something else than a file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return file.read(limit)


def replace(path: Path, content: bytes, mode: int) -> None:
    """Writes the file so that a reader finds the old one or the new one, and nothing between.

    Raises:
        OSError: the folder can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Made anew: whatever lay there is neither written through nor waited for.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
