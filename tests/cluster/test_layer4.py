"""Before a node is proven: nothing that a proof needs is kept off it, and no device is offered, whoever asks.

On the bare cluster, whose nodes came with the startup taint. That the offer comes with the agent's
file, goes with a reboot and comes again is in `test_rollout.py`.
"""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster import cluster as clusters
from tests.cluster import disk

_PLUGIN = pathlib.Path(__file__).parent / "layer4"
_RESOURCE = "rig.example/rdma"
_PODS = ("ordinary", "greedy", "named")


def _documented() -> Any:
    """The tolerations that the manifests' README tells people to give to what a node needs."""
    text = (disk.REPOSITORY / "manifests/README.md").read_text()
    section = text[text.index("## What tolerates the taint") :]
    [snippet, *_] = re.findall(r"```yaml\n(.+?)```", section, re.DOTALL)
    return yaml.safe_load(snippet)["tolerations"]


def _pod(name: str, **more: Any) -> dict[str, Any]:
    work: dict[str, Any] = {
        "name": "work",
        "image": "localhost/pause:rig",
        "imagePullPolicy": "Never",
    }
    if name != "ordinary":
        work["resources"] = {"limits": {_RESOURCE: 1}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [work], **more}
    metadata = {"name": f"layer4-{name}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _driver() -> dict[str, Any]:
    """As driver containers are run: privileged, on the host's network, on every node."""
    labels = {"app": "rig-driver"}
    container = {"name": "driver", "image": "localhost/pause:rig", "imagePullPolicy": "Never"}
    pod = {
        "hostNetwork": True,
        "tolerations": _documented(),
        "terminationGracePeriodSeconds": 0,
        "containers": [{**container, "securityContext": {"privileged": True}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "rig-driver", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


@pytest.fixture(scope="module")
def closed(cluster: clusters.Cluster) -> Iterator[clusters.Cluster]:
    """The cluster with a driver, a plugin that waits, and three pods that want in."""
    wants = [
        _pod("ordinary"),
        _pod("greedy", tolerations=[{"operator": "Exists"}]),
        _pod("named", nodeName="node-a"),
    ]
    cluster.kubectl("apply", "--kustomize", str(_PLUGIN))
    for one in (_driver(), *wants):
        cluster.apply(json.dumps(one))
    yield cluster
    names = [f"pod/layer4-{name}" for name in _PODS]
    # Emulated, their sandboxes take seconds to go: they do it while other tests run.
    cluster.kubectl(
        "delete", "daemonset/rig-plugin", "daemonset/rig-driver", *names, "--wait=false"
    )


def _status(cluster: clusters.Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("pod", f"layer4-{name}")["status"]
    return found


def _said_by_scheduler(cluster: clusters.Cluster, name: str) -> str:
    status = _status(cluster, name)
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    waits = status["phase"] == "Pending" and "PodScheduled" in conditions
    return str(conditions["PodScheduled"].get("message", "")) if waits else ""


def test_what_a_node_needs_runs_while_it_is_closed(closed: clusters.Cluster) -> None:
    """With the toleration that the README shows, and no other; an ordinary pod waits for the taint."""
    closed.wait_until("the driver", lambda: _ready(closed, "rig-driver") == 2, seconds=120)
    for name in closed.nodes:
        taints = closed.get("node", name)["spec"]["taints"]
        assert ("readiness.k8s.io/FabricReady", "unverified", "NoSchedule") in {
            (one["key"], one.get("value"), one["effect"]) for one in taints
        }
    assert "2 node(s) had untolerated taint" in _said_by_scheduler(closed, "ordinary")


def _ready(cluster: clusters.Cluster, daemonset: str) -> int:
    return int(cluster.get("daemonset", daemonset)["status"].get("numberReady", 0))


def test_a_plugin_that_waits_offers_nothing(closed: clusters.Cluster) -> None:
    """On each node its container says which boot's proof it waits for; the node has none of the resource."""
    boots = {one.boot_id() for one in closed.nodes.values()}
    closed.wait_until("both to say it", lambda: boots == _waited_for(closed), seconds=120)
    assert 0 == _ready(closed, "rig-plugin")
    for name in closed.nodes:
        assert closed.get("node", name)["status"]["allocatable"].get(_RESOURCE, "0") == "0"


def _waited_for(cluster: clusters.Cluster) -> set[str]:
    said = cluster.kubectl("logs", "--selector=app=rig-plugin", "--container=fabric-readiness")
    path = "/run/fabric-readiness/verified"
    return set(re.findall(rf"^waiting for {path} of boot (\S+): not there yet", said, re.MULTILINE))


def test_a_pod_that_tolerates_everything_still_waits(closed: clusters.Cluster) -> None:
    """The taint does not hold it, the missing device does."""
    closed.wait_until(
        "the scheduler's word", lambda: "Insufficient" in _said_by_scheduler(closed, "greedy")
    )
    assert f"2 Insufficient {_RESOURCE}" in _said_by_scheduler(closed, "greedy")


def test_a_pod_that_names_its_node_gets_no_device(closed: clusters.Cluster) -> None:
    """Nobody asks the scheduler. The kubelet has never heard of the resource and starts it, with nothing in it."""
    closed.wait_until(
        "the pod", lambda: _status(closed, "named")["phase"] == "Running", seconds=120
    )
    mine = "grep -ls HOSTNAME=layer4-named /proc/[0-9]*/environ"
    found = closed.nodes["node-a"].run(f"for e in $({mine}); do tr '\\0' '\\n' < $e; done").stdout
    assert "HOSTNAME=layer4-named" in found
    assert "RIG_DEVICES" not in found  # what the plugin gives with a device
