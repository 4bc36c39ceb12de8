"""Traffic on a port: above five percent of its rate for three seconds is use, anything less is not."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.contract import Host
from probes.readers import counters, use

PORT = ("mlx5_0", 1)
GIGA = 1e9


class Traffic:
    """Files of a port that count as if so many bits a second went out, until they are told to stop."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "sys/class/infiniband/mlx5_0/ports/1/counters"
        self.folder.mkdir(parents=True)
        self.bits_per_second = 0.0
        self.stop_after = float("inf")
        self._stopping = threading.Event()
        self._write(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        started, words = time.monotonic(), 0.0
        before = started
        while not self._stopping.wait(0.02):
            now = time.monotonic()
            if now - started < self.stop_after:
                words += self.bits_per_second * (now - before) / 32
            before = now
            self._write(int(words))

    def _write(self, words: int) -> None:
        for name in ("port_xmit_data", "port_rcv_data"):
            new = self.folder / f"{name}.new"
            new.write_text(f"{words if name == 'port_xmit_data' else 0}\n")
            new.replace(self.folder / name)

    def stop(self) -> None:
        """Ends the counting."""
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Traffic]:
    """A port's counters."""
    one = Traffic(tmp_path)
    yield one
    one.stop()


def busy(traffic: Traffic, rate: float = 400 * GIGA) -> tuple[bool, float]:
    """Whether the port is busy, and how long it took to see."""
    host = Host(root=traffic.folder.parents[6])
    started = time.monotonic()
    found = use._sustained(host, {PORT: rate})
    return PORT in found, time.monotonic() - started


def test_an_idle_port_is_seen_in_one_sample(traffic: Traffic) -> None:
    """Half a second, since most ports are idle when they are asked."""
    found, seconds = busy(traffic)
    assert not found
    assert seconds < 1.5


def test_steady_traffic_is_use(traffic: Traffic) -> None:
    """A tenth of the rate, for three seconds."""
    traffic.bits_per_second = 40 * GIGA
    found, seconds = busy(traffic)
    assert found
    assert seconds >= 3


def test_a_trickle_and_a_burst_are_no_use(traffic: Traffic) -> None:
    """Two percent is background; a burst that ends within three seconds is no job."""
    traffic.bits_per_second = 8 * GIGA
    assert not busy(traffic)[0]
    traffic.bits_per_second = 200 * GIGA
    traffic.stop_after = 0
    assert not busy(traffic)[0]


def test_words_are_four_bytes(tmp_path: Path) -> None:
    """The kernel prints IBTA's units as they are; EFA counts bytes; what is absent is None."""
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (folder / "counters").mkdir(parents=True)
    (folder / "counters/port_xmit_data").write_text("100\n")
    found = counters.snapshot(Host(root=tmp_path), *PORT)
    assert (400, None, None) == (found.transmitted_bytes, found.received_bytes, found.packets)
    (folder / "counters/port_xmit_data").unlink()
    (folder / "hw_counters").mkdir()
    (folder / "hw_counters/tx_bytes").write_text("100\n")
    assert 100 == counters.snapshot(Host(root=tmp_path), *PORT).transmitted_bytes
