"""The component for device plugins, taken in as its README shows, over DaemonSets of the shape of the real ones."""

import json
import os
import pathlib
import re
from typing import Any

import pytest
import yaml

from agent import settings
from agent.node import verified
from tests.cluster import controlplane
from tests.manifests.conftest import FOLDER, Manifests, built

_COMPONENT = FOLDER / "components/device-plugin-gate"
_EXAMPLES = re.findall(r"```yaml\n(.+?)```", (_COMPONENT / "README.md").read_text(), re.DOTALL)
_CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
_OURS = {"key": "readiness.k8s.io/FabricReady", "operator": "Exists"}
_NONE: dict[str, Any] = {}
# What differs between the plugins, and could be in the way.
_PLUGINS: dict[str, list[dict[str, Any]]] = {
    "nvidia-device-plugin.yml": [
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    ],
    "rdma-shared-device-plugin.yaml": [{"hostNetwork": True}],
    "sriovdp-daemonset.yaml": [
        {"nodeSelector": {"kubernetes.io/arch": arch}, "tolerations": [_CONTROL_PLANE]}
        for arch in ("amd64", "arm64")
    ],
}


def _daemonset(name: str, more: dict[str, Any]) -> dict[str, Any]:
    labels = {"name": name}
    plugin = {
        "name": "plugin",
        "image": "plugin:1",
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "plugins", "mountPath": "/var/lib/kubelet/device-plugins"}],
    }
    volume = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    pod = {"containers": [plugin], "volumes": [volume], **more}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _write(folder: pathlib.Path, kustomization: dict[str, Any], *plugins: dict[str, Any]) -> None:
    """The kustomization, its component found from here, and the plugins under the name that it has for them."""
    # kustomize takes no absolute paths.
    kustomization["components"] = [os.path.relpath(_COMPONENT, folder)]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    text = yaml.safe_dump_all([_daemonset(f"p{n}", more) for n, more in enumerate(plugins)])
    (folder / kustomization["resources"][0]).write_text(text)


def _pods(objects: Manifests) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in objects.values()]


@pytest.mark.parametrize("example", _EXAMPLES, ids=list(_PLUGINS))
def test_examples_make_plugins_wait_and_tolerate(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path, example: str
) -> None:
    """Each is a whole kustomization: the server takes what comes of it, and nothing that was there is lost."""
    kustomization = yaml.safe_load(example)
    [component] = kustomization["components"]
    assert str(_COMPONENT).endswith(component.removeprefix("../fabric-readiness-agent"))
    plugins = _PLUGINS[kustomization["resources"][0]]
    _write(tmp_path, kustomization, *plugins)
    pods = _pods(built(apiserver, str(tmp_path)))
    assert len(plugins) == len(pods)
    for pod, before in zip(pods, plugins, strict=True):
        [waits] = pod["initContainers"]
        assert ("REGISTRY/fabric-readiness-agent:0.1.0", ["wait"]) == (
            waits["image"], waits["args"],
        )  # fmt: skip
        assert [*before.get("tolerations", []), _OURS] == pod["tolerations"]
        assert ["plugin"] == [one["name"] for one in pod["containers"]]
        assert {"plugins", "fabric-readiness"} == {one["name"] for one in pod["volumes"]}
    apiserver.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--kustomize", str(tmp_path)
    )


def test_every_plugin_of_the_readme_is_here() -> None:
    """The examples are those three, in that order."""
    assert [[name] for name in _PLUGINS] == [yaml.safe_load(one)["resources"] for one in _EXAMPLES]


def test_it_waits_before_the_plugins_own_init_containers(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """Those may touch the hardware that is being proven."""
    own = {"initContainers": [{"name": "own", "image": "own:1"}]}
    _write(tmp_path, {"resources": ["plugin.yaml"]}, own)
    [pod] = _pods(built(apiserver, str(tmp_path)))
    assert ["fabric-readiness", "own"] == [one["name"] for one in pod["initContainers"]]


def test_it_reads_one_folder_as_nobody(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """A pod of it alone fits the restricted standard but for the folder, which is the one where the agent writes."""
    _write(tmp_path, {"resources": ["plugin.yaml"]}, _NONE)
    [pod] = _pods(built(apiserver, str(tmp_path)))
    [waits] = pod["initContainers"]
    [volume] = (one for one in pod["volumes"] if one["name"] == "fabric-readiness")
    folder = settings.Settings().node.run_dir
    assert {"path": folder, "type": "DirectoryOrCreate"} == volume["hostPath"]
    assert [{"name": "fabric-readiness", "mountPath": folder, "readOnly": True}] == waits[
        "volumeMounts"
    ]
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": "gate-restricted",
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    alone = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "waits", "namespace": "gate-restricted"},
        "spec": {
            "containers": [{**waits, "name": "waits"}],
            "volumes": [{"name": "fabric-readiness", "emptyDir": {}}],
            "automountServiceAccountToken": False,
        },
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "gate-restricted"},
    }
    for found in (namespace, account, alone):
        apiserver.apply(json.dumps(found))


def test_the_agent_does_not_wait_for_itself(
    apiserver: controlplane.ApiServer, base: Manifests, tmp_path: pathlib.Path
) -> None:
    """Where somebody takes it in over the whole product, only the other DaemonSet waits."""
    resources = ["plugin.yaml", os.path.relpath(FOLDER / "base", tmp_path)]
    _write(tmp_path, {"resources": resources}, _NONE)
    objects = built(apiserver, str(tmp_path))
    assert "initContainers" in objects["DaemonSet", "p0"]["spec"]["template"]["spec"]
    assert base["DaemonSet", "fabric-agent"] == objects["DaemonSet", "fabric-agent"]


def test_the_file_is_one_that_the_container_looks_for() -> None:
    """The README and the command name the file that the agent writes."""
    path = f"{settings.Settings().node.run_dir}/{verified.NAME}"
    assert f"`{path}`" in (_COMPONENT / "README.md").read_text()
    for rung in verified.RUNGS:
        assert f"`{rung}`" in (_COMPONENT / "README.md").read_text()
