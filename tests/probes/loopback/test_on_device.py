"""The whole probe on a real device: through its process, as the agent runs it."""

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.in_guest

ALLOW = {"software_rdma": "allow", "expected_gigabits_per_second": 0.001}
_HOLD = """
import sys
from probes.readers import transfer, verbs
with verbs.opened("rxe0") as context:
    end = transfer.End(verbs.modules(), context, 1, 1)
    end.connect(end.address)
    print("held", flush=True)
    sys.stdin.read()
    end.close()
"""
_PR_CAPBSET_DROP, _CAP_IPC_LOCK = 24, 14


def run(
    limits: dict[str, Any] = ALLOW,
    *,
    gid_index: int | None = None,
    prepare: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The verdict of one run."""
    command = [sys.executable, "-m", "probes", "loopback.bandwidth", "--limits", json.dumps(limits)]
    if gid_index is not None:
        command += ["--gid-index", str(gid_index)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=prepare, timeout=90
    )
    verdict: dict[str, Any] = json.loads(done.stdout)["verdict"]
    return verdict


@contextlib.contextmanager
def queue_pair_held() -> Iterator[int]:
    """Another program has a queue pair on the port; its process id."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert "held\n" == process.stdout.readline()
        yield process.pid
        process.communicate()


def test_bytes_move_are_counted_and_are_judged() -> None:
    """Two seconds of writes, witnessed by the device in full."""
    verdict = run()
    (part,) = verdict["parts"]
    assert ("pass", "rxe0/1", "full") == (
        verdict["outcome"],
        part["part"],
        part["notes"]["witness"],
    )
    assert re.fullmatch(r"index 1 \(RoCE v2, 10\.10\.0\.\d\)", part["notes"]["gid"])
    assert part["values"]["moved_bytes"] > 4 << 20
    assert 1.9 < part["values"]["moved_seconds"] < 10


def test_an_expectation_above_what_the_device_gives_fails() -> None:
    """The rate is really measured: a thousand times more is not reached."""
    verdict = run({**ALLOW, "expected_gigabits_per_second": 100})
    assert ("fail", "LoopbackSlow", "performance") == (
        verdict["outcome"], verdict["reason"], verdict["kind"],
    )  # fmt: skip


def test_software_rdma_is_named_and_fails_by_default() -> None:
    """A node that relies on it has no fabric."""
    verdict = run({})
    assert ("fail", "SoftwareRDMA") == (verdict["outcome"], verdict["reason"])


def test_a_port_with_a_job_on_it_is_spared_the_measurement() -> None:
    """Mechanics and integrity on at most a few megabytes; the rest is deferred, with the job's name."""
    with queue_pair_held() as pid:
        verdict = run()
    (part,) = verdict["parts"]
    assert ("pass", "deferred") == (verdict["outcome"], part["notes"]["bandwidth"])
    assert f"in use by python3 (pid {pid})" in part["message"]
    assert "measured_bits_per_second" not in part["values"]


def test_the_pinned_gid_is_used() -> None:
    """What jobs pin is what is proven; an index that is not set fails with its number."""
    verdict = run(gid_index=0)
    assert verdict["parts"][0]["notes"]["gid"].startswith("index 0 (RoCE v2, fe80:")
    verdict = run(gid_index=9)
    assert ("fail", "QueuePairNotConnected") == (verdict["outcome"], verdict["reason"])
    assert "GID index 9 is not set" in verdict["message"]


def test_too_little_locked_memory_is_said_with_the_cure() -> None:
    """Without CAP_IPC_LOCK and with a limit of 64 KiB no buffer can be registered."""
    import resource  # noqa: PLC0415

    def poor() -> None:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    verdict = run(prepare=poor)
    assert ("fail", "MemoryNotRegistered") == (verdict["outcome"], verdict["reason"])
    assert (
        "raise the locked-memory limit (RLIMIT_MEMLOCK) or grant CAP_IPC_LOCK" in verdict["message"]
    )


def test_nothing_is_left_open() -> None:
    """After a run in this process no file of the device is open: it would block a driver's upgrade."""
    from probes.contract import Host  # noqa: PLC0415
    from probes.loopback import _run  # noqa: PLC0415

    assert len(_run.read(Host())) == 1
    links = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
    assert [] == [link for link in links if "infiniband" in link]
