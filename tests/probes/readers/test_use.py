"""A port is in use when a job's queue pair lives on it; the kernel's own and our own never count.

On real verbs.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from probes.contract import Host, Unreadable
from probes.readers import rdma_netlink, transfer, use, verbs

pytestmark = pytest.mark.in_guest

# Opens a queue pair, says so, and holds it until its input ends.
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


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another program with a queue pair on the guest's port."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.communicate()


def of_port(rate: float | None = None) -> use.PortUse:
    """Use of the guest's port."""
    return use.of_ports(Host(), {("rxe0", 1): rate})["rxe0", 1]


def test_an_idle_port_is_free() -> None:
    """The kernel's own queue pairs (GSI) are there and count for nothing."""
    assert of_port().why == ""


def test_a_port_with_a_programs_queue_pair_is_busy(holder: subprocess.Popen[str]) -> None:
    """The holder is named with its process id."""
    assert of_port().why == f"in use by python3 (pid {holder.pid})"


def test_our_own_queue_pairs_do_not_count() -> None:
    """A probe that has its ends open does not take itself for a job."""
    with verbs.opened("rxe0") as context:
        end = transfer.End(verbs.modules(), context, 1, 1)
        assert len(rdma_netlink.user_queue_pairs("rxe0")) == 1
        assert of_port().why == ""
        end.close()


def test_a_holder_in_another_pid_namespace_counts() -> None:
    """A queue pair whose process can't be seen is a job's, not nobody's."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _LOOK]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        process.communicate()
    assert said == "in use by a program in another PID namespace"


_LOOK = """
from probes.contract import Host
from probes.readers import use
print(use.of_ports(Host(), {("rxe0", 1): None})["rxe0", 1].why)
"""


def test_a_device_that_is_gone_is_unreadable_and_its_port_not_free() -> None:
    """Where queue pairs can't be listed the port is treated as in use."""
    with pytest.raises(Unreadable, match="no such device"):
        rdma_netlink.user_queue_pairs("mlx5_9")
    found = use.of_ports(Host(), {("mlx5_9", 1): None})["mlx5_9", 1]
    assert found.why.startswith("can't tell whether it is in use")


def test_many_queue_pairs_are_all_listed() -> None:
    """A dump that needs several datagrams is read to its end."""
    with verbs.opened("rxe0") as context:
        ends = [transfer.End(verbs.modules(), context, 1, 1) for _ in range(100)]
        assert len(rdma_netlink.user_queue_pairs("rxe0")) == 100
        for end in ends:
            end.close()
    assert rdma_netlink.user_queue_pairs("rxe0") == ()
