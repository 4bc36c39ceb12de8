"""`fabric-ready wait`: ends when the agent on this node has proven its fabric in this boot.

For the init container of a device plugin, which runs as nobody, in any namespace, without settings or
a token: all it needs is the folder of the agent's file, read-only. It asks no server, so it holds
through an outage of all of them.
"""

import signal
import sys
import threading
from pathlib import Path

from agent.node import clock, verified
from agent.settings import Settings

_LOOK_SECONDS = 1.0
_SAY_SECONDS = 60.0
EXIT_NO_BOOT_ID = 1
EXIT_SIGTERM = 128 + signal.SIGTERM


class Speech:
    """Says what is waited for: when it changes, and once a minute."""

    def __init__(self) -> None:
        self._said = ""
        self._at = 0.0

    def is_due(self, words: str, now: float) -> bool:
        """Whether to say these words at `now`, in seconds; if so, they count as said."""
        if words == self._said and now - self._at < _SAY_SECONDS:
            return False
        self._said, self._at = words, now
        return True


def run(settings: Settings) -> int:
    """Waits, and gives the process's exit code."""
    boot = Path(settings.host.root) / "proc/sys/kernel/random/boot_id"
    try:
        boot_id = boot.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        print(f"fabric-ready: {boot}: this boot has no id: {error}", file=sys.stderr)
        return EXIT_NO_BOOT_ID
    stopping = threading.Event()
    # The first process of a container gets no signal that it has no handler for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return _wait(Path(settings.node.run_dir) / verified.NAME, boot_id, stopping)


def _wait(path: Path, boot_id: str, stopping: threading.Event) -> int:
    speech = Speech()
    while isinstance(found := _look(path, boot_id), str):
        if speech.is_due(found, clock.since_boot()):
            print(f"waiting for {path} of boot {boot_id}: {found}", flush=True)
        if stopping.wait(_LOOK_SECONDS):
            return EXIT_SIGTERM
    print(f"the fabric was proven in this boot, at {found.time}", flush=True)
    return 0


def _look(path: Path, boot_id: str) -> verified.Proof | str:
    """The proof of this boot, or why there is none."""
    try:
        found = verified.read(path)
    except FileNotFoundError:
        if not path.parent.is_dir():
            return f"there is no {path.parent}, which has to be mounted from the node"
        return "not there yet, the agent on this node has not proven the fabric"
    except verified.Unusable as error:
        return f"can't be relied on, it {error}"
    return found if found.boot_id == boot_id else f"it is of boot {found.boot_id}"
