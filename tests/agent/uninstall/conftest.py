"""A control plane of its own for each module: uninstalling looks at every node that there is."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cluster import connection
from tests.agent.gate import objects
from tests.cluster import controlplane

# Those that end what is deleted; others would write to nodes that no kubelet reports.
_CONTROLLERS = (
    "daemonset-controller", "deployment-controller", "replicaset-controller",
    "namespace-controller", "garbage-collector-controller",
)  # fmt: skip


@pytest.fixture(scope="session")
def plane() -> Iterator[controlplane.ApiServer]:
    """An API server, and the controllers that make pods and end namespaces."""
    with tempfile.TemporaryDirectory(prefix="fabric-rig-") as folder:
        api = controlplane.ApiServer.start(Path(folder) / "control-plane")
        whole = controlplane.ControlPlane(api=api, programs=[])
        whole._start(
            "kube-controller-manager",
            f"--service-account-private-key-file={api.folder / 'service-accounts.key'}",
            "--use-service-account-credentials",
            f"--controllers={','.join(_CONTROLLERS)}",
            f"--secure-port={controlplane.free_port()}",
        )
        yield api
        whole.stop()


@pytest.fixture
def admin(plane: controlplane.ApiServer) -> connection.Connection:
    """A connection that may do anything."""
    return objects.connect(plane)
