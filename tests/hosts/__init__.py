"""Machines as text: the kernel files that the readers look at, one line each, unpacked into a folder for a test.

A line is `PATH = CONTENT` or `PATH -> TARGET` (a symbolic link); `#` begins a comment. `capture.py`
writes such a file on a real machine. Those that say they were made by hand follow the layout that
kernel and drivers document.
"""

from pathlib import Path

from probes.contract import Host

_FOLDER = Path(__file__).parent


def unpack(name: str, root: Path) -> Host:
    """Writes the machine `name` below `root`.

    Raises:
        ValueError: a line is neither a file nor a link.
    """
    return unpack_text((_FOLDER / f"{name}.txt").read_text(), root, name=f"{name}.txt")


def unpack_text(text: str, root: Path, *, name: str) -> Host:
    """Writes the machine that `text` describes below `root`; `name` is for messages.

    Raises:
        ValueError: a line is neither a file nor a link.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        path, arrow, target = line.partition(" -> ")
        if arrow:
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
            continue
        path, equals, content = line.partition(" = ")
        if not equals:
            raise ValueError(f"{name}:{number}: neither a file nor a link")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content + "\n" if content else "")
    return Host(root=root)
