"""The rig keeps its promises: real nodes, real verbs between them, cables that can be pulled."""

import pathlib

import pytest

from tests.cluster import cluster as clusters
from tests.cluster import controlplane, node, waiting


def test_api_server_alone_comes_back_with_its_data(apiserver: controlplane.ApiServer) -> None:
    """A restarted API server still has what was written before."""
    apiserver.kubectl("create", "namespace", "rig-restart")
    apiserver.stop_server()
    apiserver.start_server()
    assert "namespace/rig-restart\n" == apiserver.kubectl(
        "get", "namespace", "rig-restart", "--output", "name"
    )


def test_nodes_are_ready_and_tainted_from_the_first_second(cluster: clusters.Cluster) -> None:
    """Kubelets register their node Ready, in the pool and with the startup taint."""
    nodes = cluster.get("nodes")["items"]
    assert ["node-a", "node-b"] == [item["metadata"]["name"] for item in nodes]
    for item in nodes:
        assert "True" == cluster.condition(item["metadata"]["name"])["status"]
        assert "rig" == item["metadata"]["labels"]["fabric-readiness.dev/pool"]
        taints = {(taint["key"], taint["value"]) for taint in item["spec"]["taints"]}
        assert ("readiness.k8s.io/FabricReady", "unverified") in taints


def test_bytes_move_between_nodes_over_verbs(cluster: clusters.Cluster) -> None:
    """A reliable connection carries RDMA writes from one node to the other."""
    first, second = cluster.nodes["node-a"], cluster.nodes["node-b"]
    command = "ib_write_bw --ib-dev rxe0 --gid-index 1 --size 65536 --iters 100 --report_gbits"
    server = first.spawn(command, name="write-server")
    waiting.until(
        "the server to listen",
        lambda: first.run("ss -Hltn sport = 18515").stdout,
        seconds=30,
    )
    said = second.run(f"{command} {first.fabric_address}").stdout
    server.process.wait(30)
    (result,) = (line for line in said.splitlines() if line.split()[:2] == ["65536", "100"])
    assert float(result.split()[3]) > 0


def test_pulled_cable_takes_the_port_down_and_leaves_the_node_reachable(guest: node.Node) -> None:
    """Pulling the fabric's cable downs the RDMA port and not the management network."""
    state = "cat /sys/class/infiniband/rxe0/ports/1/state"
    assert "4: ACTIVE" == guest.run(state).stdout.strip()
    guest.pull_cable()
    waiting.until("port down", lambda: "1: DOWN" == guest.run(state).stdout.strip(), seconds=10)
    guest.plug_cable()
    waiting.until("port up", lambda: "4: ACTIVE" == guest.run(state).stdout.strip(), seconds=10)


@pytest.mark.in_guest
def test_marked_test_runs_inside_a_guest() -> None:
    """A test marked `in_guest` sees the guest's own RDMA device, driven by rxe."""
    assert pathlib.Path("/sys/class/infiniband/rxe0").exists()
    assert pathlib.Path("/proc/sys/kernel/hostname").read_text().startswith("node-")
