"""A port that changes is noticed at once, by its link's message or by its files. On a real link."""

import contextlib
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.contract import Host
from probes.readers import changes

Opener = Callable[[Host], changes.Watcher]


def run(*command: str) -> None:
    """Runs a program."""
    subprocess.run(command, check=True, timeout=30)


@pytest.fixture
def open_watcher() -> Iterator[Callable[[Host], changes.Watcher]]:
    """Makes watchers, and closes them after the test."""
    with contextlib.ExitStack() as closing:

        def opened(host: Host) -> changes.Watcher:
            watcher = changes.Watcher(host)
            closing.callback(watcher.close)
            return watcher

        yield opened


def seconds_until(watcher: changes.Watcher, port: str) -> float:
    """How long it takes until `port` is reported, as the worker would wait: messages first, then looks."""
    started = time.monotonic()
    while time.monotonic() - started < 5:
        ready, _, _ = select.select([watcher], [], [], 0.05)
        if ready:
            watcher.drain()
        if port in watcher.look():
            return time.monotonic() - started
    raise AssertionError(f"{port} was not reported")


@pytest.mark.in_guest
def test_a_link_that_goes_down_and_up_is_reported_at_once(open_watcher: Opener) -> None:
    """Within half a second of the netdev's change, in both directions."""
    watcher = open_watcher(Host())
    run("ip", "link", "set", "eth1", "down")
    try:
        assert seconds_until(watcher, "rxe0/1") < 0.5
    finally:
        run("ip", "link", "set", "eth1", "up")
    assert seconds_until(watcher, "rxe0/1") < 0.5


@pytest.mark.in_guest
def test_an_address_that_comes_and_goes_is_a_change_of_its_port(open_watcher: Opener) -> None:
    """A new address means a new GID, so the port is to be looked at again; other devices' addresses are not."""
    watcher = open_watcher(Host())
    run("ip", "address", "add", "10.66.0.1/32", "dev", "lo")
    run("ip", "address", "delete", "10.66.0.1/32", "dev", "lo")
    time.sleep(0.2)
    watcher.drain()
    assert () == watcher.look()
    run("ip", "address", "add", "10.66.0.1/32", "dev", "eth1")
    assert seconds_until(watcher, "rxe0/1") < 0.5
    run("ip", "address", "delete", "10.66.0.1/32", "dev", "eth1")
    assert seconds_until(watcher, "rxe0/1") < 0.5


@pytest.mark.in_guest
def test_nothing_is_reported_while_nothing_changes(open_watcher: Opener) -> None:
    """A quiet second is quiet."""
    watcher = open_watcher(Host())
    time.sleep(1)
    assert () == watcher.look()


def test_files_alone_are_enough(tmp_path: Path, open_watcher: Opener) -> None:
    """Without any message a changed state, a counted flap, a new and a lost device are seen in the files."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "counters/link_downed").write_text("0\n")
    watcher = open_watcher(Host(root=tmp_path))
    assert () == watcher.look()
    (port / "state").write_text("1: DOWN\n")
    assert ("mlx5_0/1",) == watcher.look()
    (port / "counters/link_downed").write_text("1\n")
    assert ("mlx5_0/1",) == watcher.look()
    (tmp_path / "sys/class/infiniband/mlx5_1/ports/1").mkdir(parents=True)
    assert ("mlx5_1/1",) == watcher.look()
    (tmp_path / "sys/class/infiniband/mlx5_1").rename(tmp_path / "gone")
    assert ("mlx5_1/1",) == watcher.look()
    assert () == watcher.look()
