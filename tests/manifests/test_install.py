"""A real API server takes the manifests, and what they say fits what the code does."""

import json
import pathlib
import re
from typing import Any

import pytest
import yaml

from agent import settings
from agent.node import probing
from tests.cluster import controlplane, image
from tests.manifests.conftest import FOLDER, Manifests

DEFAULTS = settings.Settings()
AGENT, GATE = ("DaemonSet", "fabric-agent"), ("Deployment", "fabric-gate")


def _pod(objects: Manifests, workload: tuple[str, str]) -> Any:
    return objects[workload]["spec"]["template"]["spec"]


@pytest.mark.parametrize("folder", ["base", "overlays/demo"])
def test_api_server_takes_every_object(
    apiserver: controlplane.ApiServer, base: Manifests, folder: str
) -> None:
    """Strict validation by the server: an unknown or misplaced field would be refused."""
    said = apiserver.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--kustomize", str(FOLDER / folder)
    )
    assert len(base) == len(re.findall("server dry run", said))


def test_gate_fits_the_restricted_standard(
    apiserver: controlplane.ApiServer, base: Manifests
) -> None:
    """The gate's pod is admitted where the strictest pod security standard is enforced."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": "manifests-restricted",
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    metadata = {"namespace": "manifests-restricted"}
    account = base["ServiceAccount", "fabric-gate"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": "gate"},
        "spec": _pod(base, GATE),
    }
    for found in (namespace, {**account, "metadata": {**account["metadata"], **metadata}}, pod):
        apiserver.apply(json.dumps(found))


@pytest.mark.parametrize("file", ["base/config.yaml", "overlays/demo/config.yaml"])
def test_settings_are_valid(file: str) -> None:
    """Both files are settings, and each limit in them is one of the probe that it is for."""
    found = settings.load(FOLDER / file, environment={})
    probing.catalogue(found)


def test_examples_in_comments_are_valid(tmp_path: pathlib.Path) -> None:
    """What the base shows in comments may be taken as it stands."""
    text = (FOLDER / "base/config.yaml").read_text()
    example = re.compile(r"^( *)# ( *[a-z_.]+:( .*)?)$", re.MULTILINE)
    assert 5 < len(example.findall(text))
    path = tmp_path / "config.yaml"
    path.write_text(example.sub(r"\1\2", text))
    found = settings.load(path, environment={})
    assert ("h200-roce", 3) == (found.profile.name, found.host.gid_index)
    probing.catalogue(found)


def test_base_observes_and_demo_enforces() -> None:
    """Who installs the base taints nothing before asking for it."""
    modes = [
        settings.load(FOLDER / file, environment={}).gate.mode
        for file in ("base/config.yaml", "overlays/demo/config.yaml")
    ]
    assert ["observe", "enforce"] == modes


def test_demo_runs_the_rigs_image_without_a_registry(demo: Manifests) -> None:
    """Both workloads run what the rig built, and never try to pull."""
    for workload in (AGENT, GATE):
        [container] = _pod(demo, workload)["containers"]
        assert (image.AGENT, "Never") == (container["image"], container["imagePullPolicy"])


def test_demo_has_its_own_settings(demo: Manifests) -> None:
    """Both workloads mount the config map with the demo's settings, and there is one only."""
    [config] = [found for (kind, _), found in demo.items() if kind == "ConfigMap"]
    assert "rig" == yaml.safe_load(config["data"]["config.yaml"])["profile"]["name"]
    for workload in (AGENT, GATE):
        mounted = [
            one["configMap"] for one in _pod(demo, workload)["volumes"] if "configMap" in one
        ]
        assert [{"name": config["metadata"]["name"]}] == mounted


def test_agents_go_where_the_gate_looks(base: Manifests) -> None:
    """Pool, namespace and labels of the DaemonSet are what the gate selects by default."""
    daemonset = base[AGENT]
    affinity = _pod(base, AGENT)["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    pool = {"key": DEFAULTS.gate.pool_label, "operator": "Exists"}
    assert {"matchExpressions": [pool]} == term
    assert DEFAULTS.gate.namespace == daemonset["metadata"]["namespace"]
    key, value = DEFAULTS.gate.agent_selector.split("=")
    assert value == daemonset["spec"]["template"]["metadata"]["labels"][key]


def test_no_taint_of_ours_keeps_the_gate_away(base: Manifests) -> None:
    """Where every node is unverified the gate still finds a place."""
    tolerated = [one["key"] for one in _pod(base, GATE)["tolerations"] if "effect" not in one]
    assert DEFAULTS.gate.taint_key in tolerated


@pytest.mark.parametrize(
    ("workload", "port"), [(AGENT, DEFAULTS.node.http_port), (GATE, DEFAULTS.gate.http_port)]
)
def test_ports_are_those_that_are_served(
    base: Manifests, workload: tuple[str, str], port: int
) -> None:
    """Probes and scrapers ask the port that the settings open by default."""
    [container] = _pod(base, workload)["containers"]
    assert [{"name": "http", "containerPort": port}] == [
        {key: one[key] for key in ("name", "containerPort")} for one in container["ports"]
    ]
    for probe in ("readinessProbe", "livenessProbe"):
        assert "http" == container[probe]["httpGet"]["port"]
    annotations = base[workload]["spec"]["template"]["metadata"]["annotations"]
    assert str(port) == annotations["prometheus.io/port"]


@pytest.mark.parametrize("workload", [AGENT, GATE])
def test_settings_lie_where_they_are_read(base: Manifests, workload: tuple[str, str]) -> None:
    """The config map's one file is mounted at the default path."""
    [container] = _pod(base, workload)["containers"]
    places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert settings.DEFAULT_PATH == pathlib.Path(places["config"]) / "config.yaml"


def test_state_outlives_the_pod_and_not_the_boot(base: Manifests) -> None:
    """The agent's state lies on the node's /run, under the same path inside and outside."""
    pod = _pod(base, AGENT)
    [place] = [one["hostPath"]["path"] for one in pod["volumes"] if one["name"] == "run"]
    places = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert [DEFAULTS.node.run_dir] * 2 == [place, places["run"]]
    assert place.startswith("/run/")


@pytest.mark.parametrize("workload", [AGENT, GATE])
def test_environment_gives_what_is_read_from_it(
    base: Manifests, workload: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    """The pod's variables from the downward API end in the settings."""
    [container] = _pod(base, workload)["containers"]
    values = {"spec.nodeName": "gpu-7", "metadata.namespace": "somewhere"}
    environment = {
        one["name"]: values[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
        if "valueFrom" in one
    }
    (tmp_path / "config.yaml").write_text("{}")
    found = settings.load(tmp_path / "config.yaml", environment)
    assert "somewhere" == found.gate.namespace
    assert ("gpu-7" if workload == AGENT else "") == found.node.name
