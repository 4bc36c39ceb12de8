"""Everything of ours goes, whoever writes in between, and everything else is byte for byte what it was."""

import contextlib
import copy
import json
import os
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agent import settings
from agent.cluster import errors
from agent.uninstall import names, run, server
from tests.agent.gate import objects
from tests.cluster import controlplane, disk, waiting

pytestmark = pytest.mark.apiserver

MANIFESTS = disk.REPOSITORY / "manifests"
NAMESPACE = "fabric-readiness"
_TAINT_WRITER = "components/node-readiness-controller/taint-writer.yaml"
OWN_KEY = "example.com/our-fabric"
AUTOSCALER_KEY = "startup-taint.cluster-autoscaler.kubernetes.io/FabricReady"
OURS = [
    {"key": objects.KEY, "value": "driver", "effect": "NoSchedule"},
    {"key": AUTOSCALER_KEY, "value": "unverified", "effect": "NoSchedule"},
    {"key": OWN_KEY, "effect": "NoSchedule"},
]
OTHERS = [
    {"key": "example.org/first", "value": "x", "effect": "NoSchedule"},
    {"key": objects.KEY, "value": "by-hand", "effect": "NoExecute"},
    {"key": "readiness.k8s.io/Other", "effect": "NoSchedule"},
]
_KINDS = (
    "namespaces", "clusterroles", "clusterrolebindings", "customresourcedefinitions",
    "validatingadmissionpolicies", "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
)  # fmt: skip
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_RULES_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "nodereadinessrules.readiness.node.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
    },
    "spec": {
        "group": "readiness.node.x-k8s.io",
        "scope": "Cluster",
        "names": {"kind": "NodeReadinessRule", "plural": "nodereadinessrules"},
        "versions": [
            {
                "name": "v1alpha1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": _ANYTHING},
            }
        ],
    },
}  # fmt: skip


class Site:
    """A cluster with nodes on which the product has been."""

    def __init__(self, api: controlplane.ApiServer, folder: pathlib.Path) -> None:
        self.api = api
        self.folder = folder
        self.connection = objects.connect(api)
        self.nodes: list[str] = []

    def install(self, *components: str) -> list[dict[str, Any]]:
        """The manifests with components, as users do; what they hold."""
        overlay = self.folder / "overlay"
        overlay.mkdir(exist_ok=True)
        (overlay / "config.yaml").write_text(f"gate: {{mode: enforce, taint_key: {OWN_KEY}}}\n")
        generated = {"name": NAMESPACE, "namespace": NAMESPACE, "behavior": "replace"}
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(MANIFESTS / "base", overlay)],
            "components": [
                os.path.relpath(MANIFESTS / "components" / one, overlay) for one in components
            ],
            "configMapGenerator": [{**generated, "files": ["config.yaml"]}],
        }
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content))
        built = self.api.kubectl("kustomize", str(overlay))
        self.api.kubectl("apply", "--server-side", "--filename", "-", stdin=built)
        crd = "customresourcedefinition/fabricnodes.fabric-readiness.dev"
        self.api.kubectl("wait", "--for=condition=Established", "--timeout=30s", crd)
        return list(yaml.safe_load_all(built))

    def node(self, *, ours: bool = True) -> str:
        """A node with everything of others, and (where asked) everything of ours between."""
        name = f"node-{uuid.uuid4().hex[:8]}"
        self.nodes.append(name)
        metadata = {
            "name": name,
            "labels": {"fabric-readiness.dev/pool": "rig", "fabric-readiness.dev/fabric": "f"},
            "annotations": {"fabric-readiness.dev/note": "somebody's", "example.org/a": "1"},
        }
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        self.connection.create("/api/v1/nodes", body)
        first, second, third = OTHERS
        a, b, c = OURS
        taints = [a, first, b, second, c, third] if ours else OTHERS
        patch = [{"op": "add", "path": "/spec/taints", "value": taints}]
        self.connection.json_patch(f"/api/v1/nodes/{name}", patch)
        kinds = ["Ready", "FabricReady", "FabricReadyToo", "FabricTransport", "DiskPressure"]
        conditions = [
            {"type": kind, "status": "True", "reason": "R", "message": "m"}
            for kind in kinds
            if ours or kind not in names.CONDITIONS
        ]
        body = {"status": {"conditions": conditions, "capacity": {"cpu": "8"}}}
        if ours:
            body["metadata"] = {
                "labels": dict.fromkeys(names.LABELS, "true"),
                "annotations": dict.fromkeys(names.ANNOTATIONS, "x"),
            }
        self.connection.strategic_patch(f"/api/v1/nodes/{name}/status", body)
        return name

    def fabric_node(self, name: str, gate: str = NAMESPACE, **metadata: object) -> None:
        """The node's FabricNode as a gate makes it."""
        body = {
            "apiVersion": "fabric-readiness.dev/v1alpha1",
            "kind": "FabricNode",
            "metadata": {"name": name, "labels": {"fabric-readiness.dev/gate": gate}, **metadata},
        }
        self.connection.create(names.FABRIC_NODES, body)

    def get(self, name: str) -> dict[str, Any]:
        """The node as it is."""
        found: dict[str, Any] = self.connection.get(f"/api/v1/nodes/{name}")
        return found

    def versions(self) -> dict[str, str]:
        """Every node and every object in the namespace, with its version."""
        found = {}
        for path in ("/api/v1/nodes", *names.workloads(NAMESPACE), names.CRD):
            answer = self.connection.get(path)
            for one in answer.get("items", [answer]):
                found[one["metadata"]["name"]] = one["metadata"]["resourceVersion"]
        return found

    def remove(self, *, patience: float = 60, **options: bool) -> int:
        """Uninstalls with the default settings."""
        return run.remove(
            self.connection, settings.Settings(), patience_seconds=patience, **options
        )

    def names(self) -> dict[str, set[str]]:
        """Kind → names of all that there is outside namespaces, and of roles in `default`."""
        found = {}
        for kind in (*_KINDS, "roles", "rolebindings"):
            said = self.api.kubectl("get", kind, "--namespace=default", "--output=name")
            found[kind] = set(said.split())
        return found


@pytest.fixture
def site(plane: controlplane.ApiServer, tmp_path: pathlib.Path) -> Iterator[Site]:
    """A cluster where nothing of ours runs and no node has anything of ours, and so afterwards."""
    made = Site(plane, tmp_path)
    yield made
    assert 0 == made.remove()
    for name in made.nodes:
        with contextlib.suppress(errors.Conflict):
            made.connection.delete(f"/api/v1/nodes/{name}")


def without_ours(node: dict[str, Any]) -> dict[str, Any]:
    """A node apart from what is ours and what each write changes."""
    bare = copy.deepcopy(node)
    bare["spec"]["taints"] = [one for one in bare["spec"]["taints"] if one not in OURS]
    bare["status"]["conditions"] = [
        one for one in bare["status"]["conditions"] if one["type"] not in names.CONDITIONS
    ]
    for field, ours in (("labels", names.LABELS), ("annotations", names.ANNOTATIONS)):
        for key in ours:
            bare["metadata"][field].pop(key, None)
    for changed in ("resourceVersion", "managedFields"):
        bare["metadata"].pop(changed)
    return bare


def fabric_ready(site: Site, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command as an administrator."""
    return subprocess.run(
        [sys.executable, "-m", "agent", "uninstall", *arguments],
        cwd=disk.REPOSITORY,
        env={**os.environ, "KUBECONFIG": str(site.api.admin_kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )


def counts(said: str) -> dict[str, int]:
    """Kind → how many, of what the command printed."""
    lines = [line for line in said.splitlines() if " removed" in line]
    return {
        kind.strip(): int(count)
        for kind, count in (
            line.split(" removed")[0].removesuffix(" would be").rsplit(maxsplit=1) for line in lines
        )
    }


def test_all_takes_what_the_manifests_installed(site: Site) -> None:
    """Afterwards there is exactly what there was before the installation."""
    site.remove(everything=True)
    before = site.names()
    built = site.install("startup-taint", "cluster-autoscaler")
    site.api.kubectl("apply", "--filename", str(MANIFESTS / _TAINT_WRITER))
    assert 20 < len(built)
    assert before != site.names()
    assert 0 == site.remove(everything=True)
    assert before == site.names()


def test_nodes_are_cleaned_when_everything_else_is_gone_already(site: Site) -> None:
    """Agents, gate and CRD are no more, and their settings name the taint nowhere: the command is told it."""
    site.remove(everything=True)
    name = site.node()
    said = settings.Settings(gate=settings.GateSettings(taint_key=OWN_KEY))
    expected = without_ours(site.get(name))
    assert 0 == run.remove(site.connection, said)
    found = site.get(name)
    assert expected == without_ours(found)
    assert len(OTHERS) == len(found["spec"]["taints"])
    assert [] == [k for k in found["metadata"]["annotations"] if k in names.ANNOTATIONS]


def test_everything_of_ours_goes_and_nothing_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """With agents, gate and policies in place: a dry run says it, a run does it, a second one finds nothing."""
    site.install("startup-taint")
    touched, clean = [site.node(), site.node()], site.node(ours=False)
    site.fabric_node(touched[0])
    agents = f"/api/v1/namespaces/{NAMESPACE}/pods"
    waiting.until("pods", lambda: site.connection.get(agents)["items"], seconds=30)
    before = {name: site.get(name) for name in (*touched, clean)}
    versions = site.versions()
    expected = {
        "taints of nodes": 6, "conditions of nodes": 4, "labels of nodes": 2,
        "annotations of nodes": 6, "fabricnodes": 1, "customresourcedefinitions": 1,
        "deployments": 1, "daemonsets": 1, "mutatingadmissionpolicies": 1,
        "mutatingadmissionpolicybindings": 1, "leases": 0,
    }  # fmt: skip

    said = fabric_ready(site, "--dry-run")
    assert (0, "") == (said.returncode, said.stderr)
    pods = counts(said.stdout).pop("pods")
    assert expected | {"pods": pods} == counts(said.stdout)
    assert 0 < pods
    assert "Nothing was changed." in said.stdout
    assert {**before} == {name: site.get(name) for name in before}
    assert versions.keys() == site.versions().keys()
    assert {name: versions[name] for name in before} == {
        name: site.versions()[name] for name in before
    }

    said = fabric_ready(site)
    assert (0, "") == (said.returncode, said.stderr), said.stdout
    assert expected | {"pods": pods} == counts(said.stdout)
    for name in touched:
        assert json.dumps(without_ours(before[name])) == json.dumps(without_ours(site.get(name)))
        assert OTHERS == [
            {key: value for key, value in one.items() if key != "timeAdded"}
            for one in site.get(name)["spec"]["taints"]
        ]
    assert before[clean] == site.get(clean)
    assert [] == site.connection.get(agents)["items"]
    assert site.connection.get(f"/api/v1/namespaces/{NAMESPACE}")

    after = {name: site.get(name) for name in before}
    assert 0 == site.remove()
    assert {0} == set(counts(capsys.readouterr().out).values())
    assert after == {name: site.get(name) for name in before}


def test_other_writers_lose_nothing(site: Site) -> None:
    """Controllers that write the same nodes' taints all the time keep theirs, and ours goes."""
    site.install()
    nodes = [site.node(), site.node()]
    with contextlib.ExitStack() as stack:
        hammered = [
            stack.enter_context(objects.hammer(site.api, name, f"example.org/hammer-{number}"))
            for name in nodes
            for number in range(2)
        ]
        waiting.until("the writers", lambda: all(len(one) > 3 for one in hammered), seconds=20)
        assert 0 == site.remove()
        seen = [len(one) for one in hammered]
        waiting.until(
            "the writers to have read what was left",
            lambda: all(len(one) > count + 2 for one, count in zip(hammered, seen, strict=True)),
            seconds=20,
        )
    assert [] == [lost for said in hammered for lost in said if lost]
    for name in nodes:
        keys = [(one["key"], one["effect"]) for one in site.get(name)["spec"]["taints"]]
        assert [(one["key"], one["effect"]) for one in OTHERS] == [
            key for key in keys if not key[0].startswith("example.org/hammer")
        ]


def test_what_is_left_is_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """An object that others hold back is named with what holds it; once they let go, a second run ends it."""
    site.install()
    name = site.node()
    site.fabric_node(name, finalizers=["example.org/hold"])
    assert 1 == site.remove(patience=2, everything=True)
    said = capsys.readouterr().out
    assert "left: fabricnodes.fabric-readiness.dev: is still being deleted" in said
    assert (
        f"left: fabricnode {name}: is still being deleted, and waits for example.org/hold" in said
    )
    assert objects.KEY not in {
        one["key"] for one in site.get(name)["spec"]["taints"] if one["effect"] == "NoSchedule"
    }
    site.connection.merge_patch(f"{names.FABRIC_NODES}/{name}", {"metadata": {"finalizers": None}})
    assert 0 == site.remove()


def test_pod_that_does_not_end_is_named_and_holds_nothing_up(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent on a node that does not answer: the nodes are cleaned, and a person is told."""
    site.install()
    name = site.node()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "lost", "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "fabric-agent"},
        },
        "spec": {
            "nodeName": name, "serviceAccountName": "fabric-agent",
            "containers": [{"name": "agent", "image": "none.invalid/none"}],
        },
    }  # fmt: skip
    site.connection.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    assert 1 == site.remove(patience=2)
    said = capsys.readouterr().out
    assert "left: pod lost: has not ended and may write again" in said
    assert "FabricReady" not in {one["type"] for one in site.get(name)["status"]["conditions"]}
    site.api.kubectl(
        "delete", "pod", "lost", "--namespace", NAMESPACE, "--grace-period=0", "--force"
    )


def test_another_installation_keeps_its_nodes(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes of a gate in another namespace stay as they are, with their objects and the CRD."""
    site.install()
    mine, theirs, orphan = site.node(), site.node(), site.node()
    for name, gate in ((mine, NAMESPACE), (theirs, "default"), (orphan, "fabric-gone")):
        site.fabric_node(name, gate)
    before = site.get(theirs)
    assert 0 == site.remove()
    assert "the FabricNodes' CRD: stays: 1 FabricNodes belong" in capsys.readouterr().out
    assert before == site.get(theirs)
    [left] = site.connection.get(names.FABRIC_NODES)["items"]
    assert theirs == left["metadata"]["name"]
    for name in (mine, orphan):
        assert len(OTHERS) == len(site.get(name)["spec"]["taints"])
    site.connection.delete(f"{names.FABRIC_NODES}/{theirs}")


def test_rules_of_node_readiness_controller(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours goes first. One that somebody else wrote would close every node once the condition goes: it comes first.

    The kind is a bare one of that name; its controller has no part in this.
    """
    site.api.apply(json.dumps(_RULES_CRD))
    crd = f"customresourcedefinition/{_RULES_CRD['metadata']['name']}"
    site.api.kubectl("wait", "--for=condition=Established", "--timeout=30s", crd)
    folder = MANIFESTS / "components/node-readiness-controller"
    site.api.kubectl("apply", "--kustomize", str(folder))
    name = site.node()
    rule = yaml.safe_load((folder / "rule.yaml").read_text())
    other = {**rule, "metadata": {"name": "theirs"}}
    unrelated = {**rule, "metadata": {"name": "unrelated"}, "spec": {"conditions": [{"type": "X"}]}}
    for one in (other, unrelated):
        site.connection.create(names.RULES, one)
    before = site.get(name)
    assert 1 == site.remove()
    assert "left: nodereadinessrules/theirs: wants our condition" in capsys.readouterr().out
    assert before == site.get(name)
    site.connection.delete(f"{names.RULES}/theirs")
    assert 0 == site.remove(everything=True)
    assert 1 == counts(capsys.readouterr().out)["nodereadinessrules"]
    [left] = site.connection.get(names.RULES)["items"]
    assert "unrelated" == left["metadata"]["name"]
    site.connection.delete(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{_RULES_CRD['metadata']['name']}"
    )


def test_pages_are_followed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """More nodes than come at once: each page's are cleaned, and counted."""
    monkeypatch.setattr(server, "_PAGE", 2)
    made = [site.node() for _ in range(5)]
    assert 0 == site.remove()
    for name in made:
        assert not site.get(name)["metadata"]["labels"].keys() & set(names.LABELS)


def test_refusals_are_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Who may not take it off is told so, and nothing is called done."""
    name = site.node()
    path = site.folder / "weak.kubeconfig"
    site.api.write_kubeconfig(path, "weak", "nobody")
    said = subprocess.run(
        [sys.executable, "-m", "agent", "uninstall"],
        cwd=disk.REPOSITORY,
        env={**os.environ, "KUBECONFIG": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 1 == said.returncode
    assert "403" in said.stdout
    assert capsys
    assert len(OURS) + len(OTHERS) == len(site.get(name)["spec"]["taints"])


@pytest.mark.parametrize("arguments", [("--timeout", "0"), ("--timeout", "x"), ("--al",), ("x",)])
def test_usage(site: Site, arguments: tuple[str, ...]) -> None:
    """What can't be meant is exit code 64, and nothing is asked of the server."""
    said = fabric_ready(site, *arguments)
    assert (64, "") == (said.returncode, said.stdout)
