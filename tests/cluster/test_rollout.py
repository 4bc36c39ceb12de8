"""The product on a real cluster, installed as users do: what the demo shows, and what happens after it."""

import io
import json
import pathlib
from typing import Any

import pytest
import rich.console

from tests.cluster import cluster as clusters
from tests.cluster import demo

_PLUGIN = pathlib.Path(__file__).parent / "layer4"


@pytest.fixture(scope="module")
def shown(cluster: clusters.Cluster) -> demo.Demo:
    """The demo, run to its end; what it installed stays."""
    one = demo.Demo(cluster, rich.console.Console(file=io.StringIO()))
    one.run()
    return one


def test_the_demo_sees_what_it_expects(shown: demo.Demo) -> None:
    """Every step is as expected: waits, verified, runs; pulled, shut out within two seconds, let in again."""
    seen = {what: good for what, _, _, _, good in shown.rows}
    assert [True] * 12 == list(seen.values())
    assert "node-b: cable pulled" in seen


def test_the_scheduler_names_the_taint(shown: demo.Demo) -> None:
    """A person who asks why a pod waits is told."""
    words = next(seen for what, _, seen, _, _ in shown.rows if what == "workload pod waits")
    assert "2 node(s) had untolerated taint" in words


def test_an_agent_that_hangs_is_seen_and_one_that_dies_costs_nothing(
    shown: demo.Demo, cluster: clusters.Cluster
) -> None:
    """SIGSTOP: its pod is not ready. SIGKILL: it starts again, the condition does not move, no taint comes."""
    assert shown.rows
    before = cluster.condition("node-a", "FabricReady")
    guest, pid = cluster.nodes["node-a"], _agent_pid(cluster)
    guest.run(f"kill -STOP {pid}")
    cluster.wait_until("the pod to be unready", lambda: _agents_ready(cluster) == 1, seconds=90)
    guest.run(f"kill -CONT {pid}")
    cluster.wait_until("the pod to be ready", lambda: _agents_ready(cluster) == 2, seconds=90)
    guest.run(f"kill -9 {_agent_pid(cluster)}")
    cluster.wait_until("another process", lambda: _agent_pid(cluster) not in {"", pid}, seconds=90)
    cluster.wait_until("the pod to be ready", lambda: _agents_ready(cluster) == 2, seconds=120)
    after = cluster.condition("node-a", "FabricReady")
    assert before["lastTransitionTime"] == after["lastTransitionTime"]
    assert ("True", "FabricVerified") == (after["status"], after["reason"])
    assert "taints" not in cluster.get("node", "node-a")["spec"]


def _agent_pid(cluster: clusters.Cluster) -> str:
    """Of the agent's process on node-a, empty while there is none."""
    mine = "tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q 'fabric-ready agent $'"
    find = f"for p in /proc/[0-9]*; do {mine} && echo ${{p#/proc/}}; done"
    found = cluster.nodes["node-a"].run(find, check=False).stdout.split()
    return found[0] if len(found) == 1 else ""


def _agents_ready(cluster: clusters.Cluster) -> int:
    status = cluster.get("daemonset", "fabric-agent", "--namespace", demo.NAMESPACE)["status"]
    return int(status.get("numberReady", 0))


@pytest.mark.timeout(400, func_only=True)
def test_a_bad_image_everywhere_closes_nobody(shown: demo.Demo, cluster: clusters.Cluster) -> None:
    """No agent starts: the gate holds both nodes open and says so; undone, nothing has moved."""
    assert shown.rows
    before = {name: cluster.condition(name, "FabricReady") for name in cluster.nodes}
    workload = ("daemonset/fabric-agent", "--namespace", demo.NAMESPACE)
    cluster.kubectl("set", "image", *workload, "agent=localhost/no-such-image:1")
    cluster.kubectl(
        "delete", "pods", "--namespace", demo.NAMESPACE, "--wait=false",
        "--selector=app.kubernetes.io/name=fabric-agent",
    )  # fmt: skip
    cluster.wait_until("no agent", lambda: _agents_ready(cluster) == 0, seconds=60)
    cluster.wait_until("word of it", lambda: _said_of_breaker(cluster), seconds=60)
    assert [None, None] == [_taint(cluster, name) for name in cluster.nodes]
    cluster.kubectl("rollout", "undo", *workload)
    cluster.wait_until("all agents", lambda: _agents_ready(cluster) == 2, seconds=180)
    assert [None, None] == [_taint(cluster, name) for name in cluster.nodes]
    after = {name: cluster.condition(name, "FabricReady") for name in cluster.nodes}
    assert {name: one["lastTransitionTime"] for name, one in before.items()} == {
        name: one["lastTransitionTime"] for name, one in after.items()
    }


def _said_of_breaker(cluster: clusters.Cluster) -> bool:
    events = cluster.get(
        "events", "--namespace", demo.NAMESPACE, "--field-selector=reason=FabricBreakerOpen"
    )["items"]
    return any("(agent)" in one["message"] for one in events)


@pytest.fixture(scope="module")
def plugin(shown: demo.Demo, cluster: clusters.Cluster) -> str:
    """A device plugin with the component on it, on both nodes; the name of its resource."""
    assert shown.rows
    cluster.kubectl("apply", "--kustomize", str(_PLUGIN))
    resource = "rig.example/rdma"
    cluster.wait_until(
        "what it offers",
        lambda: [_offered(cluster, name, resource) for name in cluster.nodes] == ["2", "2"],
        seconds=120,
    )
    return resource


def _offered(cluster: clusters.Cluster, name: str, resource: str) -> str | None:
    status = cluster.get("node", name)["status"]
    value = status.get("allocatable", {}).get(resource)
    return None if value is None else str(value)


@pytest.mark.timeout(500, func_only=True)
def test_a_reboot_closes_the_node_until_it_is_proven_again(
    plugin: str, cluster: clusters.Cluster
) -> None:
    """A new boot id taints the node as unverified at once; the proof of the new boot takes it off.

    Reset is pressed: the kubelet reports the new boot, and verbs are there again. Until the proof, the device
    plugin, which tolerates the taint as the agent does, waits on the node and offers nothing.
    """
    # The harder half: the gate that leads goes down with its node, and the other one has to notice.
    lease = cluster.get("lease", "fabric-gate", "--namespace", demo.NAMESPACE)
    leader, _, _ = lease["spec"]["holderIdentity"].rpartition("_")
    name = cluster.get("pod", leader, "--namespace", demo.NAMESPACE)["spec"]["nodeName"]
    boot = _verified_boot(cluster, name)
    cluster.nodes[name].reboot()
    cluster.wait_until("the taint", lambda: _taint(cluster, name) == "unverified", seconds=90)
    offered: list[str | None] = []

    def proven() -> bool:
        node = cluster.get("node", name)
        done = _boot_of(node) not in {"", boot}
        if node["status"]["nodeInfo"]["bootID"] != boot and not done:
            offered.append(node["status"]["allocatable"].get(plugin))
        return done

    cluster.wait_until("a new proof", proven, seconds=240)
    assert {"0"} == set(offered)
    cluster.wait_until("the plugin", lambda: _offered(cluster, name, plugin) == "2", seconds=90)
    cluster.wait_until("the taint to go", lambda: _taint(cluster, name) is None, seconds=60)
    reported = cluster.get("node", name)["status"]["nodeInfo"]["bootID"]
    assert _verified_boot(cluster, name) == reported == cluster.nodes[name].boot_id()


def _taint(cluster: clusters.Cluster, name: str) -> str | None:
    taints = cluster.get("node", name)["spec"].get("taints", [])
    return next((str(one["value"]) for one in taints if one["key"] == demo.TAINT), None)


def _verified_boot(cluster: clusters.Cluster, name: str) -> str:
    return _boot_of(cluster.get("node", name))


def _boot_of(node: dict[str, Any]) -> str:
    annotations = node["metadata"]["annotations"]
    return str(annotations.get("fabric-readiness.dev/verified-boot-id", ""))


def test_a_person_can_ask_the_agent(shown: demo.Demo, cluster: clusters.Cluster) -> None:
    """`fabric-ready check` inside the pod, with the pod's settings: a table's facts, and exit code 0."""
    assert shown.rows
    pod = cluster.get(
        "pods", "--namespace", demo.NAMESPACE, "--selector=app.kubernetes.io/name=fabric-agent",
        "--field-selector=spec.nodeName=node-a",
    )["items"][0]["metadata"]["name"]  # fmt: skip
    said = cluster.kubectl(
        "exec",
        "--namespace",
        demo.NAMESPACE,
        pod,
        "--",
        "fabric-ready",
        "check",
        "--json",
        timeout=120,
    )
    found = json.loads(said)
    assert ("pass", 0, False) == (found["outcome"], found["exit_code"], found["peers_asked"])
    assert "kubelet" not in said
