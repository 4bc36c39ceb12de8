"""The opt-in components agree with the code, and with each other."""

import os
import pathlib
import re
from typing import Any

import yaml

from agent import settings
from agent.gate import records
from agent.uninstall import names
from tests.cluster import controlplane
from tests.manifests import callers
from tests.manifests.conftest import FOLDER, Manifests

DEFAULTS = settings.Settings().gate


def _overlay(folder: pathlib.Path, *components: str) -> pathlib.Path:
    """The base with components, as a user writes it."""
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(FOLDER / "base", folder)],
        "components": [os.path.relpath(FOLDER / "components" / one, folder) for one in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def _built(
    api: controlplane.ApiServer, folder: pathlib.Path
) -> dict[tuple[str, str], dict[str, Any]]:
    found = yaml.safe_load_all(api.kubectl("kustomize", str(folder)))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_cluster_autoscaler_gets_one_key_everywhere(
    apiserver: controlplane.ApiServer, base: Manifests, tmp_path: pathlib.Path
) -> None:
    """Settings, toleration, startup taint and both policies name the autoscaler's key; the server takes it all."""
    assert base
    folder = _overlay(tmp_path, "startup-taint", "cluster-autoscaler")
    apiserver.kubectl("apply", "--dry-run=server", "--validate=strict", "--kustomize", str(folder))
    found = _built(apiserver, folder)
    [config] = [one for (kind, _), one in found.items() if kind == "ConfigMap"]
    (tmp_path / "config.yaml").write_text(config["data"]["config.yaml"])
    gate = settings.load(tmp_path / "config.yaml", environment={}).gate
    assert (callers.AUTOSCALER_KEY, "observe") == (gate.taint_key, gate.mode)
    pod = found["Deployment", "fabric-gate"]["spec"]["template"]["spec"]
    assert {"key": gate.taint_key, "operator": "Exists"} in pod["tolerations"]
    startup = str(found["MutatingAdmissionPolicy", "fabric-startup-taint"]["spec"])
    assert 3 == startup.count(gate.taint_key)
    assert callers.KEY not in startup
    for policy in ("fabric-gate-taint-only", "fabric-reserved-names"):
        assert f"'{gate.taint_key}'" in str(found["ValidatingAdmissionPolicy", policy]["spec"])
    assert gate.taint_key in names.TAINT_KEYS
    assert gate.taint_key.startswith("startup-taint.cluster-autoscaler.kubernetes.io/")


def test_karpenter_needs_nothing(base: Manifests) -> None:
    """It takes each key under readiness.k8s.io/ for one that goes away; the default is one."""
    assert base
    assert DEFAULTS.taint_key.startswith("readiness.k8s.io/")
    assert DEFAULTS.taint_key in names.TAINT_KEYS


def test_node_readiness_rule_says_what_the_gate_does(apiserver: controlplane.ApiServer) -> None:
    """Its condition, pool and taint are the defaults; it closes nodes that say nothing, and goes on looking.

    What its controller takes (0.5.0) is written down here, since its CRD is not at hand: keys below
    readiness.k8s.io/ with 1 to 63 characters, and no default status for what is absent.
    """
    folder = str(FOLDER / "components/node-readiness-controller")
    rule = yaml.safe_load((pathlib.Path(folder) / "rule.yaml").read_text())
    assert ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule") == (
        rule["apiVersion"], rule["kind"],
    )  # fmt: skip
    assert names.RULES == f"/apis/{rule['apiVersion']}/nodereadinessrules"
    spec = rule["spec"]
    assert {
        "conditions": [{"type": records.CONDITION, "requiredStatus": "True"}],
        "enforcementMode": "continuous",
        "taint": {
            "key": DEFAULTS.taint_key, "value": "unverified", "effect": records.TAINT_EFFECT,
        },
        "nodeSelector": {"matchExpressions": [{"key": DEFAULTS.pool_label, "operator": "Exists"}]},
    } == spec  # fmt: skip
    assert re.fullmatch(r"readiness\.k8s\.io/[^/]{1,63}", spec["taint"]["key"])
    said = apiserver.kubectl("kustomize", folder)
    for one in yaml.safe_load_all(said):
        key, value = names.PART_OF.split("=")
        assert value == one["metadata"]["labels"][key]
