"""The daemon as a process, over a captured machine, against a real API server, through every trouble of both."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.node import machines
from tests.cluster import controlplane, waiting

_ROOT = Path(__file__).parents[3]
_NAMESPACE = "daemon-tests"
_REBOOTED = "22222222-0000-4000-8000-000000000002"
# The agent's rights as manifests/base gives them, in a namespace of these tests.
_ACCOUNT = f"""\
apiVersion: v1
kind: Namespace
metadata: {{name: {_NAMESPACE}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: fabric-agent, namespace: {_NAMESPACE}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {_NAMESPACE}}}
rules:
  - {{apiGroups: [""], resources: [nodes/status], verbs: [patch]}}
  - {{apiGroups: [""], resources: [events], verbs: [create]}}
  - {{apiGroups: [fabric-readiness.dev], resources: [fabricnodes], verbs: [get, watch]}}
  - {{apiGroups: [fabric-readiness.dev], resources: [fabricnodes/status], verbs: [patch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {_NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {_NAMESPACE}}}
subjects: [{{kind: ServiceAccount, name: fabric-agent, namespace: {_NAMESPACE}}}]
"""


@dataclasses.dataclass(kw_only=True)
class Subject:
    """A Node, its machine, and its agent."""

    api: controlplane.ApiServer
    name: str
    folder: Path
    machine: machines.Machine
    port: int
    namespace: str = _NAMESPACE
    process: subprocess.Popen[bytes] | None = None

    def create_node(self) -> None:
        """A bare Node object and a token bound to it."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        self.api.kubectl("create", "-f", "-", stdin=json.dumps(body))
        account = self.folder / "account"
        account.mkdir(exist_ok=True)
        (account / "ca.crt").write_bytes(self.api.ca_file.read_bytes())
        self.renew_token()

    def renew_token(self) -> None:
        """A token bound to the Node object that there is now."""
        token = self.api.token("fabric-agent", self.namespace, node=self.name)
        (self.folder / "account/token").write_text(token)

    def make_anew(self) -> None:
        """The Node is deleted and created again, as bare as at first; the token stays the old one's."""
        self.api.kubectl("delete", "node", self.name)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        self.api.kubectl("create", "-f", "-", stdin=json.dumps(body))

    def start(self) -> None:
        """Starts the agent."""
        settings = {
            "rungs": ["inventory", "driver"],
            "host": {"root": str(self.machine.root)},
            "node": {
                "run_dir": str(self.folder / "run"),
                "http_address": "127.0.0.1",
                "http_port": self.port,
                "serviceaccount_dir": str(self.folder / "account"),
                "hysteresis": {"recovery_spacing_seconds": 0.2},
            },
        }
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        server = urllib.parse.urlsplit(self.api.url)
        environment = {
            **os.environ,
            "NODE_NAME": self.name,
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent", "agent", "--config", str(config)],
                cwd=_ROOT,
                env=environment,
                stderr=log,
            )

    def create_fabric_node(self) -> None:
        """The node's FabricNode, as the gate makes it."""
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self.name,
            "uid": self.node()["metadata"]["uid"],
        }
        body = {
            "apiVersion": "fabric-readiness.dev/v1alpha1",
            "kind": "FabricNode",
            "metadata": {"name": self.name, "ownerReferences": [owner]},
        }
        self.api.kubectl("create", "-f", "-", stdin=json.dumps(body))

    def fabric_node(self) -> dict[str, Any]:
        """The status of the node's FabricNode."""
        said = self.api.kubectl("get", "fabricnode", self.name, "-o", "json")
        found: dict[str, Any] = json.loads(said).get("status", {})
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the agent and gives its exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(timeout=10)

    def node(self) -> dict[str, Any]:
        """The Node object."""
        found: dict[str, Any] = json.loads(self.api.kubectl("get", "node", self.name, "-o", "json"))
        return found

    def proof(self) -> str:
        """The boot that the file for device plugins names, empty where there is none."""
        path = self.folder / "run/verified"
        return path.read_text().split()[0] if path.exists() else ""

    def condition(self) -> dict[str, str]:
        """Our condition, empty where there is none."""
        conditions = self.node().get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == "FabricReady"), {})

    def wait(self, status: str, reason: str, seconds: float = 20) -> dict[str, str]:
        """The condition when it says this."""

        def look() -> dict[str, str] | None:
            found = self.condition()
            said = (found.get("status"), found.get("reason"))
            return found if said == (status, reason) else None

        what = f"{self.name} to be {status} {reason}"
        found: dict[str, str] = waiting.until(what, look, seconds=seconds, detail=self.log)
        return found

    def log(self) -> str:
        """What the agent logged."""
        return (self.folder / "agent.log").read_text()[-6000:]

    def events(self) -> list[str]:
        """Reasons of the events about this Node, oldest first."""
        said = self.api.kubectl(
            "get", "events", "-n", "default", "-o", "json",
            f"--field-selector=involvedObject.name={self.name},involvedObject.kind=Node",
        )  # fmt: skip
        found = json.loads(said)["items"]
        return [
            one["reason"]
            for one in sorted(found, key=lambda one: int(one["metadata"]["resourceVersion"]))
        ]

    def page(self, path: str) -> tuple[int, str]:
        """A page of the agent: status code and text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def writes(self) -> dict[tuple[str, str], float]:
        """API writes by kind and result, as the agent counts them."""
        found = {}
        for line in self.page("/metrics")[1].splitlines():
            if line.startswith("fabric_ready_api_writes_total{"):
                kind, result = (part.split('"')[1] for part in line.split("}")[0].split(","))
                found[kind, result] = float(line.rsplit(" ", 1)[1])
        return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


_count = iter(range(1, 1000))


@pytest.fixture
def subject(apiserver: controlplane.ApiServer, tmp_path: Path) -> Iterator[Subject]:
    """A Node and its machine, whose agent does not run yet."""
    apiserver.apply(_ACCOUNT)
    one = Subject(
        api=apiserver,
        name=f"daemon-{next(_count)}",
        folder=tmp_path,
        machine=machines.make(tmp_path / "machine"),
        port=_free_port(),
    )
    one.create_node()
    yield one
    if one.process and one.process.poll() is None:
        one.stop(signal.SIGKILL)
    apiserver.kubectl("delete", "node", one.name, "--ignore-not-found")


@pytest.fixture
def verified(subject: Subject) -> Subject:
    """The same, with its agent running and the node verified."""
    subject.start()
    subject.wait("True", "FabricVerified")
    return subject


def test_a_node_is_verified_marked_and_told_about(verified: Subject) -> None:
    """Condition, label, annotations and events say it; the pages answer; the first event was Verifying."""
    node = verified.node()
    assert "true" == node["metadata"]["labels"]["fabric-readiness.dev/verified"]
    annotations = node["metadata"]["annotations"]
    assert machines.BOOT == annotations["fabric-readiness.dev/verified-boot-id"]
    assert "" == annotations["fabric-readiness.dev/blocked-rung"]
    assert 12 == len(annotations["fabric-readiness.dev/profile-hash"])
    waiting.until(
        "both events", lambda: ["Verifying", "FabricVerified"] == verified.events(), seconds=5
    )
    assert (200, "ok\n") == verified.page("/readyz")
    assert (200, "ok\n") == verified.page("/healthz")
    assert 404 == verified.page("/secrets")[0]
    said = json.loads(verified.page("/verdicts")[1])
    assert "pass" == said["probes"]["driver.ports"]["standing"]
    metrics = verified.page("/metrics")[1]
    assert (
        'fabric_ready_condition{reason="FabricVerified",status="True",type="FabricReady"} 1.0'
        in metrics
    )


def test_a_port_that_goes_down_is_said_within_two_seconds_and_comes_back(verified: Subject) -> None:
    """False with the port's name; still proven in this boot; True again after its passes."""
    pulled = time.monotonic()
    verified.machine.pull()
    said = verified.wait("False", "PortDown")
    assert time.monotonic() - pulled < 2
    assert "driver.ports: mlx5_0/1 is DOWN (physical state Disabled), InfiniBand" in said["message"]
    node = verified.node()
    assert "true" == node["metadata"]["labels"]["fabric-readiness.dev/verified"]
    assert "driver" == node["metadata"]["annotations"]["fabric-readiness.dev/blocked-rung"]
    assert machines.BOOT == verified.proof()
    verified.machine.plug()
    verified.wait("True", "FabricVerified", seconds=40)


def test_a_device_that_falls_off_the_bus_is_missed(verified: Subject) -> None:
    """No profile says how many there should be: this boot remembers what it had."""
    verified.machine.add_device()
    time.sleep(0.1)
    waiting.until("both seen", lambda: "0000:00:04.0" in verified.page("/verdicts")[1], seconds=30)
    verified.machine.remove_device()
    said = verified.wait("False", "RdmaDeviceLost", seconds=30)
    assert "0000:00:04.0 was here earlier in this boot and is gone" in said["message"]


def test_a_quiet_node_writes_nothing(verified: Subject) -> None:
    """After the last change no write goes out, and no field of the Node moves."""
    waiting.until("events sent", lambda: 2 == len(verified.events()), seconds=5)
    before, writes = verified.node(), verified.writes()
    time.sleep(8)
    assert before == verified.node()
    assert writes == verified.writes()


def test_a_restart_in_the_same_boot_changes_nothing(verified: Subject) -> None:
    """SIGTERM writes nothing, and the next agent finds what was proven and has nothing to say."""
    waiting.until("events sent", lambda: 2 == len(verified.events()), seconds=5)
    before = verified.node()
    assert 0 == verified.stop()
    assert before == verified.node()
    verified.start()
    waiting.until("ready again", lambda: _ready(verified), seconds=20, detail=verified.log)
    assert before == verified.node()
    assert {} == verified.writes()


def _ready(subject: Subject) -> bool:
    with contextlib.suppress(OSError):
        return subject.page("/readyz")[0] == 200
    return False


def test_a_new_boot_starts_with_nothing_proven(verified: Subject) -> None:
    """After a reboot the first thing said is Unknown, unverified, with no boot id; then the proof is made anew."""
    verified.stop(signal.SIGKILL)
    assert machines.BOOT == verified.proof()
    verified.machine.boot(_REBOOTED)
    # A probe that can't be read holds the first verification back for as long as we look.
    rate = verified.machine.port / "rate"
    rate.unlink()
    rate.symlink_to("/proc/self/mem")  # reading it at 0 is EIO
    verified.start()
    said = verified.wait("Unknown", "Unreadable")
    assert "Input/output error (EIO)" in said["message"]
    node = verified.node()
    assert "false" == node["metadata"]["labels"]["fabric-readiness.dev/verified"]
    assert "" == node["metadata"]["annotations"]["fabric-readiness.dev/verified-boot-id"]
    assert "" == verified.proof()
    rate.unlink()
    rate.write_text("400 Gb/sec (4X NDR)\n")
    verified.machine.set_state(
        "4: ACTIVE", "5: LinkUp\n"
    )  # a change to look at, without one in what it says
    verified.wait("True", "FabricVerified", seconds=40)
    assert (
        _REBOOTED
        == verified.node()["metadata"]["annotations"]["fabric-readiness.dev/verified-boot-id"]
        == verified.proof()
    )


def test_an_outage_of_the_api_server_loses_nothing_and_repeats_nothing(verified: Subject) -> None:
    """What happened meanwhile is said once it is back: the last state, and one event for each transition."""
    waiting.until("events sent", lambda: 2 == len(verified.events()), seconds=5)
    verified.api.stop_server()
    try:
        verified.machine.pull()
        time.sleep(6)
    finally:
        verified.api.start_server()
    verified.wait("False", "PortDown", seconds=70)
    waiting.until("event", lambda: 3 == len(verified.events()), seconds=70)
    time.sleep(2)
    assert 1 == verified.events().count("PortDown")
    accepted = verified.writes()["change", "accepted"]
    assert accepted <= 3


def test_a_half_open_connection_is_given_up(verified: Subject) -> None:
    """A server that takes the request and never answers costs one timeout; the state arrives afterwards."""
    verified.api.server.pause()
    try:
        verified.machine.pull()
        time.sleep(13)
        assert (200, "ok\n") == verified.page("/healthz")
    finally:
        verified.api.server.resume()
    verified.wait("False", "PortDown", seconds=70)


def test_missing_rights_are_said_and_survived(verified: Subject) -> None:
    """403: the loop goes on and says what is missing; when the right is back the state arrives."""
    verified.api.kubectl("delete", "clusterrolebinding", _NAMESPACE)
    time.sleep(1)
    verified.machine.pull()
    waiting.until("the refusal", lambda: ("change", "refused") in verified.writes(), seconds=20)
    assert "403" in verified.log()
    assert 'cannot patch resource \\"nodes/status\\"' in verified.log()
    verified.api.apply(_ACCOUNT)
    verified.wait("False", "PortDown", seconds=70)


def test_a_node_that_was_made_anew_is_not_stamped_with_the_old_verdict(verified: Subject) -> None:
    """Same name, other uid: the server refuses, the agent says so and goes on; the new Node stays bare."""
    verified.make_anew()
    verified.machine.pull()
    waiting.until(
        "the refusal",
        lambda: ("change", "conflict") in verified.writes(),
        seconds=20,
        detail=verified.log,
    )
    assert {} == verified.condition()
    assert "labels" not in verified.node()["metadata"] or (
        "fabric-readiness.dev/verified" not in verified.node()["metadata"]["labels"]
    )
    assert (200, "ok\n") == verified.page("/healthz")
    # The kubelet's next token is bound to the new Node: now it is ours, and starts from nothing.
    verified.renew_token()
    verified.wait("False", "PortDown")
    assert "false" == verified.node()["metadata"]["labels"]["fabric-readiness.dev/verified"]
    assert "Verifying" in verified.events()


def test_a_restart_on_a_node_that_was_made_anew_proves_it_again(subject: Subject) -> None:
    """What was proven and told to another Node object does not count; a device that was here does."""
    subject.machine.add_device()
    subject.start()
    subject.wait("True", "FabricVerified")
    subject.stop()
    subject.make_anew()
    subject.renew_token()
    subject.machine.remove_device()
    subject.start()
    said = subject.wait("False", "RdmaDeviceLost")
    assert "0000:00:04.0 was here earlier in this boot and is gone" in said["message"]
    assert "false" == subject.node()["metadata"]["labels"]["fabric-readiness.dev/verified"]


def test_a_token_that_was_rotated_is_used(verified: Subject) -> None:
    """The file changes under the agent; an unusable token meanwhile costs nothing but time."""
    token = verified.folder / "account/token"
    good = token.read_text()
    token.write_text("not.a.token")
    verified.machine.pull()
    waiting.until("the refusal", lambda: ("change", "refused") in verified.writes(), seconds=20)
    token.write_text(good)
    verified.wait("False", "PortDown", seconds=70)


def test_a_broken_state_file_costs_a_new_verification(verified: Subject) -> None:
    """Garbage where the proof was kept: verified anew, nothing claimed meanwhile."""
    verified.stop(signal.SIGKILL)
    (verified.folder / "run/state.json").write_bytes(b"\xff\xfe{")
    verified.machine.pull()
    verified.start()
    verified.wait("False", "PortDown")
    assert "false" == verified.node()["metadata"]["labels"]["fabric-readiness.dev/verified"]


def test_its_fabricnode_tells_the_rungs_and_takes_requests(verified: Subject) -> None:
    """Written when there is one, on change only; a human's request has everything looked at again, once."""
    verified.create_fabric_node()
    what = "the FabricNode to be filled"
    waiting.until(what, verified.fabric_node, seconds=60, detail=verified.log)
    first = verified.fabric_node()
    assert ("pass", "") == (first["outcome"], first["blockedRung"])
    assert {"inventory": "pass", "driver": "pass"} == {
        rung["name"]: rung["outcome"] for rung in first["rungs"]
    }
    assert (
        verified.node()["metadata"]["annotations"]["fabric-readiness.dev/verified-boot-id"]
        == (first["bootID"])
    )
    verified.machine.pull()
    verified.wait("False", "PortDown")
    waiting.until("word of it", lambda: verified.fabric_node()["outcome"] == "fail", seconds=20)
    driver = next(one for one in verified.fabric_node()["rungs"] if one["name"] == "driver")
    assert ("fail", "PortDown") == (driver["outcome"], driver["reason"])
    assert "mlx5_0/1" in driver["message"]
    assert "PortDown" == verified.fabric_node()["transitions"][-1]["reason"]
    before = _runs(verified)
    patch = json.dumps({"spec": {"recheck": "ticket 42"}})
    verified.api.kubectl("patch", "fabricnode", verified.name, "--type=merge", "--patch", patch)
    waiting.until(
        "the request to be done",
        lambda: verified.fabric_node()["recheck"] == "ticket 42",
        seconds=60,
        detail=verified.log,
    )
    assert all(runs > before[name] for name, runs in _runs(verified).items())


def _runs(subject: Subject) -> dict[str, int]:
    """How often each probe that moves nothing ran."""
    page = f"http://127.0.0.1:{subject.port}/verdicts"
    with urllib.request.urlopen(page, timeout=5) as answer:
        found = json.load(answer)["probes"]
    return {name: one["runs"] for name, one in found.items() if name != "loopback.bandwidth"}


def test_fabricnode_of_another_node_object_is_left_alone(verified: Subject) -> None:
    """One that belongs to the Node before it under the same name says nothing of this one."""
    verified.create_fabric_node()
    waiting.until("the status", verified.fabric_node, seconds=60, detail=verified.log)
    verified.stop()
    verified.make_anew()
    verified.renew_token()
    version = _version(verified)
    verified.start()
    verified.wait("True", "FabricVerified")
    time.sleep(2)
    assert version == _version(verified)


def _version(subject: Subject) -> str:
    said = subject.api.kubectl("get", "fabricnode", subject.name, "-o", "json")
    return str(json.loads(said)["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: {}\n", "config.yaml:1: nodes: unknown key; allowed here: rungs, profile, limits"),
        (
            "limits: {driver.ports: {require: all}}\n",
            "config.yaml:1: limits.driver.ports.require: not a limit of driver.ports",
        ),
        ("disable: [driver.prots]\n", "config.yaml:1: disable: no probe is called 'driver.prots'"),
        ("rungs: [inventory, podview]\n", "config.yaml:1: rungs: 'podview' has no probe"),
    ],
)
def test_wrong_settings_refuse_to_start(tmp_path: Path, text: str, words: str) -> None:
    """Exit code 64 and one line that names the file, the key and what is allowed; nothing is written anywhere."""
    config = tmp_path / "config.yaml"
    config.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "agent", "agent", "--config", str(config)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 64 == done.returncode
    assert words in done.stderr
    assert 1 == len(done.stderr.splitlines())
