"""Files that others read while we write them."""

import contextlib
import os
from pathlib import Path


def replace(path: Path, content: bytes, mode: int) -> None:
    """Writes the file so that a reader finds the old one or the new one, and nothing between.

    Raises:
        OSError: the folder can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
