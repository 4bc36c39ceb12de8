"""Every right is used: what agent and gate ask of an API server is what the manifests allow, no more and no less."""

import contextlib
import json
import pathlib
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
import yaml

from tests.agent.gate import objects
from tests.agent.gate.test_loop import Gate, until
from tests.agent.node import machines
from tests.agent.node.test_daemon import Subject
from tests.cluster import controlplane, processes, waiting
from tests.manifests.conftest import FOLDER, Manifests, built

pytestmark = pytest.mark.apiserver

NAMESPACE = "fabric-readiness"
STARTUP = {"key": objects.KEY, "value": "unverified", "effect": "NoSchedule"}
Right = tuple[str, str, str, str, str]
"""Account, namespace, API group, resource (with subresource) and verb."""


class Audited:
    """An API server that writes down what the two accounts ask of it, with the base installed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.log = folder / "audit.log"
        accounts = [f"system:serviceaccount:{NAMESPACE}:fabric-{one}" for one in ("agent", "gate")]
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "rules": [{"level": "Metadata", "users": accounts}, {"level": "None"}],
        }
        (folder / "policy.yaml").write_text(json.dumps(policy))
        flags = [f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={self.log}"]
        self.api = controlplane.ApiServer.start(folder / "control-plane", arguments=flags)

    def install(self) -> Manifests:
        """The base, as users install it."""
        self.api.kubectl("apply", "--server-side", "--kustomize", str(FOLDER / "base"))
        crd = "customresourcedefinition/fabricnodes.fabric-readiness.dev"
        self.api.kubectl("wait", "--for=condition=Established", "--timeout=30s", crd)
        return built(self.api, "base")

    def asked(self) -> tuple[set[Right], list[str]]:
        """What was asked for, and each request that was refused."""
        used, refused = set(), []
        for line in self.log.read_text().splitlines():
            said = json.loads(line)
            what = said.get("objectRef")
            if what is None:
                continue
            resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            account = said["user"]["username"].rpartition(":")[2]
            where = what.get("namespace", "")
            used.add((account, where, what.get("apiGroup", ""), resource, said["verb"]))
            if said.get("responseStatus", {}).get("code") in {401, 403}:
                refused.append(f"{account}: {said['verb']} {said['requestURI']}")
        return used, refused


def allowed(base: Manifests) -> set[Right]:
    """What the manifests' roles allow, each to the account of its name."""
    return {
        (one["metadata"]["name"], one["metadata"].get("namespace", ""), group, resource, verb)
        for (kind, _), one in base.items()
        if kind in {"Role", "ClusterRole"}
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
def audited() -> Iterator[Audited]:
    """A server of its own: the others' tests use other accounts."""
    with tempfile.TemporaryDirectory(prefix="fabric-rig-") as folder:
        made = Audited(pathlib.Path(folder))
        yield made
        made.api.stop()


@contextlib.contextmanager
def _gate(api: controlplane.ApiServer, folder: pathlib.Path) -> Iterator[Gate]:
    """The gate with its own account, observing."""
    folder.mkdir()
    port = controlplane.free_port()
    values = {"http_address": "127.0.0.1", "http_port": port, "stable_seconds": 1}
    config = folder / "config.yaml"
    config.write_text(json.dumps({"gate": {"mode": "observe", **values}}))
    program = processes.Program.start(
        "gate",
        [sys.executable, "-m", "agent", "gate", "--config", config],
        folder=folder,
        env={"KUBECONFIG": str(_kubeconfig(api, folder)), "PYTHONPATH": str(FOLDER.parent)},
    )
    running = Gate(program, port, config)
    try:
        until(running, "leadership", lambda: running.value("fabric_gate_leading") == 1)
        yield running
    finally:
        program.stop()


def _kubeconfig(api: controlplane.ApiServer, folder: pathlib.Path) -> pathlib.Path:
    cluster = {"server": api.url, "certificate-authority": str(api.ca_file)}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": api.token("fabric-gate", NAMESPACE)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))
    return folder / "kubeconfig"


def _agent(api: controlplane.ApiServer, name: str, folder: pathlib.Path) -> Subject:
    """The agent with its own account on a node that there is."""
    folder.mkdir()
    subject = Subject(
        api=api,
        name=name,
        folder=folder,
        machine=machines.make(folder / "machine"),
        port=controlplane.free_port(),
        namespace=NAMESPACE,
    )
    account = folder / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(api.ca_file.read_bytes())
    subject.renew_token()
    return subject


def _live(pool: objects.Pool, running: Gate, agent: Subject) -> None:
    """What happens to nodes in their lives, all of it."""
    first, second = pool.add("first"), pool.add("second")
    unproven, leaving = pool.add("unproven", [STARTUP]), pool.add("leaving", [STARTUP])
    for node in (first, second):
        pool.agent(node, ready=True)
        pool.report(node, "True", "FabricVerified")
    until(running, "objects", lambda: all(map(pool.fabric_node, (unproven, leaving, agent.name))))
    agent.start()
    until(running, "what the agent found", agent.fabric_node)
    # A human takes the startup taint off a node that never proved anything: it is adopted.
    pool.connection.json_patch(
        f"/api/v1/nodes/{unproven}", [{"op": "remove", "path": "/spec/taints"}]
    )
    until(running, "adoption", lambda: _adopted(pool, unproven))
    pool.api.kubectl("label", "node", leaving, f"{pool.label}-")
    until(running, "release", lambda: pool.fabric_node(leaving) is None)
    running.set(mode="enforce")
    for node in (first, second):
        pool.report(node, "False", "PortDown", rung="driver")
    until(running, "the breaker's event", lambda: _breaker_events(pool))


def _adopted(pool: objects.Pool, node: str) -> bool:
    return "adopted" in (pool.fabric_node(node) or {}).get("spec", {})


def _breaker_events(pool: objects.Pool) -> int:
    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    return len(pool.connection.get(path, {"fieldSelector": "involvedObject.kind=Lease"})["items"])


@pytest.mark.timeout(150, func_only=True)
def test_every_right_is_used_and_none_is_missing(audited: Audited, tmp_path: pathlib.Path) -> None:
    """Both live through all that can happen, and the server's own log is compared with the roles."""
    base = audited.install()
    pool = objects.Pool(audited.api)
    pool.label, pool.namespace = "fabric-readiness.dev/pool", NAMESPACE
    account = {"name": "default", "namespace": NAMESPACE}
    audited.api.apply(
        json.dumps({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    )
    agent = _agent(audited.api, pool.add("agent"), tmp_path / "agent")
    try:
        with _gate(audited.api, tmp_path / "gate") as running:
            _live(pool, running, agent)
            waiting.until(
                "a watch of its FabricNode", lambda: _watches(audited), seconds=20, every=0.5
            )
    finally:
        if agent.process:
            agent.stop(signal.SIGTERM)
    used, refused = audited.asked()
    assert [] == refused
    assert allowed(base) == used


def _watches(audited: Audited) -> bool:
    return any(
        (one[0], one[3], one[4]) == ("fabric-agent", "fabricnodes", "watch")
        for one in audited.asked()[0]
    )
