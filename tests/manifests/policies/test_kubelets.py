"""Kubelets register and report under every policy, whole, half and broken; our names are nobody else's."""

import json
import pathlib
import uuid

import pytest
import yaml

from agent.cluster import errors
from tests.cluster import cache, controlplane, waiting
from tests.manifests import callers
from tests.manifests.conftest import FOLDER


@pytest.fixture
def kubelet(
    apiserver: controlplane.ApiServer, node: str, tmp_path: pathlib.Path
) -> callers.Kubelet:
    """The kubelet of the node."""
    return callers.kubelet_of(apiserver, node, tmp_path)


def test_kubelet_registers_and_reports(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """With every policy installed it brings the startup taint and writes its status."""
    callers.live(apiserver, tmp_path)


def test_reserved_names_are_not_a_kubelets(
    apiserver: controlplane.ApiServer,
    kubelet: callers.Kubelet,
    node: str,
    tmp_path: pathlib.Path,
) -> None:
    """Nor anybody's who may write nodes; what does not touch them passes, also while they are there."""
    apiserver.kubectl("taint", "node", node, f"{callers.KEY}=driver:NoSchedule")
    apiserver.kubectl("label", "node", node, f"{callers.PREFIX}/verified=false")
    kubelet.report(node, {"status": {"capacity": {"cpu": "9"}}})
    reserved = "by agent, gate and those who may update fabricnodes"
    with pytest.raises(errors.Conflict, match=reserved):
        kubelet.report(node, callers.condition(status="True"))
    name = f"{node}-2"
    with pytest.raises(cache.RigError, match=reserved):
        callers.register(
            callers.kubelet_of(apiserver, name, tmp_path),
            name,
            **{f"{callers.PREFIX}/verified": "true"},
        )


def test_reserved_names_are_not_another_controllers(
    apiserver: controlplane.ApiServer, node: str
) -> None:
    """One that may write nodes, but not FabricNodes, keeps its own taints and can't take ours."""
    other = callers.node_writer(apiserver)
    ours = {"key": callers.KEY, "value": "driver", "effect": "NoSchedule"}
    apiserver.kubectl("taint", "node", node, f"{callers.KEY}=driver:NoSchedule")
    more = {"key": "example.org/more", "effect": "NoSchedule"}
    callers.write_taints(other, node, more, ours)
    for wrong in (
        [more],
        [more, {**ours, "value": "peer"}],
        [more, {**ours, "effect": "NoExecute"}],
        [more, ours, {**ours, "effect": "NoExecute"}],
    ):
        with pytest.raises(cache.RigError, match="by agent, gate and those"):
            callers.write_taints(other, node, *wrong)
    with pytest.raises(cache.RigError, match="by agent, gate and those"):
        other.kubectl("annotate", "node", node, f"{callers.PREFIX}/verified-boot-id=b1")
    apiserver.kubectl("taint", "node", node, f"{callers.KEY}-")  # an admin may


def test_lists_may_come_back_in_another_order(apiserver: controlplane.ApiServer, node: str) -> None:
    """One that read the node, and writes all of it with its own change, has not touched our names."""
    other = callers.node_writer(apiserver)
    both = [callers.condition(type=kind) for kind in ("FabricReady", "FabricTransport")]
    for one in both:
        apiserver.kubectl(
            "patch", "node", node, "--subresource=status", "--type=strategic",
            "--patch", json.dumps(one),
        )  # fmt: skip
    for key in (callers.KEY, callers.AUTOSCALER_KEY):
        apiserver.kubectl("taint", "node", node, f"{key}=driver:NoSchedule")
    found = json.loads(apiserver.kubectl("get", "node", node, "--output=json"))
    conditions, taints = found["status"]["conditions"], found["spec"]["taints"]
    conditions.reverse()
    taints.reverse()
    other.kubectl("replace", "--subresource=status", "--filename=-", stdin=json.dumps(found))
    callers.write_taints(other, node, *taints)
    kept = json.loads(apiserver.kubectl("get", "node", node, "--output=json"))
    assert (conditions, taints) == (kept["status"]["conditions"], kept["spec"]["taints"])


def test_an_autoscaler_puts_the_startup_taint_on(
    apiserver: controlplane.ApiServer, node: str
) -> None:
    """Karpenter makes a node its own with one write, its startup taints in it; it does not take them off."""
    karpenter = callers.node_writer(apiserver)
    startup = {"key": callers.KEY, "value": "unverified", "effect": "NoSchedule"}
    registered = {
        "metadata": {"labels": {"karpenter.sh/registered": "true"}},
        "spec": {"taints": [startup]},
    }
    karpenter.kubectl("patch", "node", node, "--type=merge", "--patch", json.dumps(registered))
    said = apiserver.kubectl("get", "node", node, "--output=jsonpath={.spec.taints}")
    assert [startup] == json.loads(said)
    with pytest.raises(cache.RigError, match="taken off, by agent, gate and those"):
        callers.write_taints(karpenter, node)


def test_half_an_install_stops_no_kubelet(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """Policies without bindings, bindings without policies, one that breaks when it runs: nodes register."""
    names = ("fabric-reserved-names", "fabric-agent-own-node", "fabric-gate-taint-only")
    objects = _policies("base")
    try:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            apiserver.kubectl("delete", kind, *names)
            callers.live(apiserver, tmp_path)
            _apply(apiserver, objects)
        broken = objects.replace("variables.sameConditions &&", "1/0 == 1 &&")
        assert broken != objects
        _apply(apiserver, broken)
        waiting.until(
            "the broken policy to be the one that runs",
            lambda: _breaks(apiserver),
            seconds=callers.EFFECT_SECONDS,
        )
        callers.live(apiserver, tmp_path)
    finally:
        _apply(apiserver, objects)


def _apply(apiserver: controlplane.ApiServer, objects: str) -> None:
    """As users do, and as the base was: the fields have one owner."""
    apiserver.kubectl("apply", "--filename", "-", stdin=objects)


def _breaks(apiserver: controlplane.ApiServer) -> bool:
    """Whether a write that the policy refuses while it is whole passes."""
    node = callers.create_node(apiserver)
    path = pathlib.Path(apiserver.folder)
    try:
        callers.kubelet_of(apiserver, node, path).report(node, callers.condition(status="True"))
    except errors.Conflict:
        return False
    finally:
        apiserver.kubectl("delete", "node", node)
    return True


def _policies(*folders: str) -> str:
    kinds = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    found = [
        one
        for folder in folders
        for path in sorted((FOLDER / folder).glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
        if one.get("kind") in kinds
    ]
    return yaml.safe_dump_all(found)


def test_startup_taint_comes_with_the_registration(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """The opt-in component: a node of the pool has the taint from its first moment, others have not."""
    component = str(FOLDER / "components/startup-taint/policy.yaml")
    apiserver.kubectl("apply", "--server-side", "--filename", component)
    try:
        waiting.until(
            "the policy to act", lambda: _is_born_closed(apiserver), seconds=callers.EFFECT_SECONDS
        )
        name = f"policy-{uuid.uuid4().hex[:8]}"
        callers.register(callers.kubelet_of(apiserver, name, tmp_path), name, callers.OTHERS)
        taints = json.loads(
            apiserver.kubectl("get", "node", name, "--output=jsonpath={.spec.taints}")
        )
        assert {callers.OTHERS["key"], callers.KEY} < {taint["key"] for taint in taints}
        outside = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{name}-outside"}}
        apiserver.apply(json.dumps(outside))
        said = apiserver.kubectl("get", "node", f"{name}-outside", "--output=jsonpath={.spec}")
        assert callers.KEY not in said
        for one in (name, f"{name}-outside"):
            apiserver.kubectl("delete", "node", one)
    finally:
        apiserver.kubectl("delete", "--filename", component)


def _is_born_closed(apiserver: controlplane.ApiServer) -> bool:
    name = f"policy-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {f"{callers.PREFIX}/pool": "rig"}}
    apiserver.apply(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
    said = apiserver.kubectl("get", "node", name, "--output=jsonpath={.spec.taints}")
    apiserver.kubectl("delete", "node", name)
    return callers.KEY in said
