"""`fabric-ready wait`: what a device plugin's init container waits for, as a process."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.wait import Speech
from tests.agent.node import machines
from tests.cluster import waiting

_ROOT = Path(__file__).parents[2]
_TIME = "2026-01-01T00:00:00Z"


class Waiter:
    """The command over a captured machine, its folder and what it said."""

    def __init__(self, folder: Path) -> None:
        self.machine = machines.make(folder / "machine")
        self.run = folder / "run"
        self.file = self.run / "verified"
        self._config = folder / "config.yaml"
        values = {"host": {"root": str(self.machine.root)}, "node": {"run_dir": str(self.run)}}
        self._config.write_text(yaml.safe_dump(values))
        self._output = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent", "wait", "--config", str(self._config)],
                cwd=_ROOT,
                stdout=output,
                stderr=output,
            )

    def lines(self) -> list[str]:
        """What it said."""
        return self._output.read_text().splitlines()

    def wait_said(self, words: str) -> None:
        """Returns when it said this last."""
        what = f"the words {words!r}"
        waiting.until(what, lambda: words in "".join(self.lines()[-1:]), seconds=10)

    def ended(self) -> int:
        """Its exit code."""
        assert self.process
        return self.process.wait(timeout=10)

    def put(self, content: str) -> None:
        """Puts the file there, whole at once."""
        self.run.mkdir(exist_ok=True)
        new = self.run / "verified.new"
        new.write_text(content)
        new.replace(self.file)


@pytest.fixture
def waiter(tmp_path: Path) -> Iterator[Waiter]:
    """One that does not run yet."""
    one = Waiter(tmp_path)
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def test_a_proof_of_this_boot_ends_it_at_once(waiter: Waiter) -> None:
    """Exit code 0, and when the proof was made."""
    waiter.put(f"{machines.BOOT} {_TIME}\n")
    waiter.start()
    assert 0 == waiter.ended()
    assert [f"the fabric was proven in this boot, at {_TIME}"] == waiter.lines()


def test_it_waits_through_everything_that_is_no_proof(waiter: Waiter) -> None:
    """No folder, no file, garbage, another boot: each is said in one line; then the proof comes."""
    waiter.start()
    waiter.wait_said(f"there is no {waiter.run}, which has to be mounted from the node")
    waiter.run.mkdir()
    waiter.wait_said("not there yet, the agent on this node has not proven the fabric")
    waiter.put("\0" * 4096)
    waiter.wait_said("can't be relied on, it is not a boot id and a time")
    waiter.put(f"another {_TIME}\n")
    waiter.wait_said("it is of boot another")
    assert waiter.process
    assert None is waiter.process.poll()
    waiter.put(f"{machines.BOOT} {_TIME}\n")
    assert 0 == waiter.ended()
    said = waiter.lines()
    assert 5 == len(said)
    head = f"waiting for {waiter.file} of boot {machines.BOOT}: "
    assert all(line.startswith(head) for line in said[:-1])


def test_sigterm_ends_it_at_once(waiter: Waiter) -> None:
    """A pod that is deleted while it waits is gone without the kubelet's patience; its code is not success."""
    waiter.run.mkdir()
    waiter.start()
    waiter.wait_said("not there yet")
    assert waiter.process
    waiter.process.send_signal(signal.SIGTERM)
    assert 143 == waiter.ended()


def test_a_boot_without_an_id_is_an_error(waiter: Waiter) -> None:
    """Exit code 1 and one line: nothing could ever be compared."""
    (waiter.machine.root / "proc/sys/kernel/random/boot_id").unlink()
    waiter.start()
    assert 1 == waiter.ended()
    [line] = waiter.lines()
    assert "boot_id: this boot has no id" in line


def test_it_says_what_it_waits_for_when_that_changes_and_once_a_minute() -> None:
    """Neither silent nor a flood."""
    speech = Speech()
    said = [(words, at) for words, at in _looks() if speech.is_due(words, at)]
    assert [("absent", 1000), ("absent", 1060), ("other", 1090), ("other", 1150)] == said


def _looks() -> Iterator[tuple[str, float]]:
    for second in range(1000, 1200):
        yield ("absent" if second < 1090 else "other"), second
