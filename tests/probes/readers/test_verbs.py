"""What verbs list, in every state a machine can be in. On real verbs, changed and put back."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from probes.readers import verbs

pytestmark = pytest.mark.in_guest

_LIST = """
from probes.contract import Unreadable
from probes.readers import verbs
try:
    print(*verbs.device_names())
except Unreadable as error:
    print(type(error).__name__, error)
"""


def run(*command: str) -> str:
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def listed(*prefix: str) -> str:
    """What a fresh process lists, started through `prefix`."""
    return run(*prefix, sys.executable, "-c", _LIST).strip()


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """rxe0 is gone for a while."""
    run("rdma", "link", "delete", "rxe0")
    try:
        yield
    finally:
        run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth1")


def test_a_device_is_listed_and_described() -> None:
    """The guest's device has one active Ethernet port with the large MTU, and the library says its version."""
    assert verbs.device_names() == ("rxe0",)
    with verbs.opened("rxe0") as context:
        port = verbs.port_attributes(context, 1)
    assert (verbs.PORT_ACTIVE, "Ethernet", 4096, 0) == (
        port.state, port.link_layer, port.active_mtu_bytes, port.lid,
    )  # fmt: skip
    major, minor = verbs.library_version().split(".")
    assert int(major) >= 44
    assert int(minor) >= 0


def test_a_device_that_is_not_there_cannot_be_opened() -> None:
    """Opening names the device and says why."""
    from probes.contract import Unreadable  # noqa: PLC0415

    with pytest.raises(Unreadable, match="mlx5_9: can't be opened"), verbs.opened("mlx5_9"):
        pass


def test_no_device_is_an_empty_list() -> None:
    """Verbs without a device list nothing, and that is no error."""
    with without_device():
        assert listed() == ""


def test_a_kernel_without_verbs_is_said_so() -> None:
    """ib_uverbs is not loaded: NoVerbs, which is not the same as an empty list."""
    with without_device():
        run("rmmod", "rdma_rxe")
        run("rmmod", "rdma_ucm", "ib_uverbs")
        try:
            assert listed().startswith("NoVerbs")
        finally:
            run("modprobe", "--all", "rdma_rxe", "rdma_ucm")


def test_a_device_in_another_network_namespace_is_not_listed() -> None:
    """In netns mode exclusive a process elsewhere sees no device."""
    run("rdma", "system", "set", "netns", "exclusive")
    try:
        assert listed("unshare", "--net") == ""
        assert listed() == "rxe0"
    finally:
        run("rdma", "system", "set", "netns", "shared")


def test_a_missing_provider_library_hides_the_device() -> None:
    """sysfs has the device and verbs do not, because nothing in user space can drive it."""
    hide = 'for lib in /usr/lib/*/libibverbs/librxe-*.so; do mount --bind /dev/null $lib; done; exec "$@"'
    assert listed("unshare", "--mount", "sh", "-c", hide, "sh") == ""
    assert "rxe0" in run("ls", "/sys/class/infiniband")
