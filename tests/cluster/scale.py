"""The gate before thousands of nodes: `python -m tests.cluster.scale --nodes 5000`, and a part of `make bench`.

Real etcd and API server, the product's gate as a process with the token and the rights that the
manifests give it. The nodes are bare Node objects with an agent's pod each, written by a generator
that plays kubelets and agents: what a kubelet simulator would add is load that two cores have no
room for.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import rich.console
import yaml
from kubernetes import client, config

from agent.cluster import connection, errors
from tests.cluster import cache, controlplane, prepare, processes, results, waiting
from tests.cluster.results import Result

NODES = 5000
_KEY = "readiness.k8s.io/FabricReady"
_NAMESPACE = "fabric-readiness"
_POOL = "fabric-readiness.dev/pool"
_BOOT = "11111111-aaaa-4444-8888-000000000001"
_WRITERS = 8
_QUIET_SECONDS = 120
_HEARTBEATS_PER_SECOND = 17  # of 5,000 kubelets that report every five minutes
_CHANGES_PER_SECOND = 50
_CHANGE_SECONDS = 60
_BASE = prepare.DOCKERFILE.parent / "manifests/base"
_JSON, _STRATEGIC = "application/json", "application/strategic-merge-patch+json"


def measure(nodes: int) -> dict[str, Result]:
    """All numbers, in one run.

    Raises:
        RigError: something did not start, or did not settle.
    """
    prepare.control_plane()
    with tempfile.TemporaryDirectory(prefix="fabric-scale-") as name:
        folder = pathlib.Path(name)
        api = controlplane.ApiServer.start(
            folder / "control-plane", arguments=["--max-requests-inflight=1000"]
        )
        try:
            return _Run(api, folder, nodes).measure()
        finally:
            api.stop()


class _Run:
    def __init__(self, api: controlplane.ApiServer, folder: pathlib.Path, nodes: int) -> None:
        self._api = api
        self._folder = folder
        self._names = [f"node-{number:05}" for number in range(nodes)]
        self._admin = _connect(api.admin_kubeconfig)
        self._port = controlplane.free_port()

    def measure(self) -> dict[str, Result]:
        self._api.kubectl("apply", "--kustomize", str(_BASE))
        say = functools.partial(print, "scale:", flush=True)
        say(f"writing {len(self._names)} nodes and pods")
        self._each(self._create)
        found: dict[str, Result] = {}
        started = time.monotonic()
        with self._gate() as gate:
            self._until(
                "every node decided", lambda: self._sum("fabric_gate_nodes") == len(self._names)
            )
            found["gate_start_seconds_5k"] = Result(
                value=time.monotonic() - started,
                unit=f"s, {len(self._names)} nodes",
                target="<= 20",
            )
            self._until("every object written", self._all_objects, seconds=600)
            say("a quiet time")
            found["gate_quiet_writes"] = self._quiet()
            memory = _status(gate.process.pid)
            found["gate_memory_mib_5k"] = Result(
                value=memory["VmRSS"], unit="MiB resident", target="<= 80", peer=memory["VmHWM"]
            )
            say("every node fails at once")
            found["gate_mass_event_gated_percent"] = self._mass_event()
            say("one change after another")
            self._settings(100)
            found["gate_taint_seconds_p99"] = self._changes()
        return found

    def _create(self, name: str) -> None:
        self._send("POST", "/api/v1/nodes", _node(name))
        self._send("PATCH", f"/api/v1/nodes/{name}/status", _report("True", "FabricVerified"))
        pods = f"/api/v1/namespaces/{_NAMESPACE}/pods"
        self._send("POST", pods, _pod(name))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self._send("PATCH", f"{pods}/agent-{name}/status", {"status": ready})

    def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        for attempt in range(5):
            try:
                self._admin._send(method, path, body, _STRATEGIC if method == "PATCH" else _JSON)
            except (errors.Throttled, errors.Unreachable):
                time.sleep(0.2 * 2**attempt)
            else:
                return
        raise cache.RigError(f"{method} {path} does not get through")

    def _each(self, work: Callable[[str], None]) -> None:
        with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(work, self._names):
                pass

    def _set(self, status: str, name: str) -> None:
        reason = "FabricVerified" if status == "True" else "LoopbackSlow"
        self._send("PATCH", f"/api/v1/nodes/{name}/status", _report(status, reason))

    @contextlib.contextmanager
    def _gate(self) -> Iterator[processes.Program]:
        self._settings(None)
        token = self._api.token("fabric-gate", _NAMESPACE)
        kubeconfig = self._folder / "gate.kubeconfig"
        user = {"name": "gate", "user": {"token": token}}
        server = {"server": self._api.url, "certificate-authority": str(self._api.ca_file)}
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "gate",
                    "clusters": [{"name": "rig", "cluster": server}],
                    "contexts": [{"name": "gate", "context": {"cluster": "rig", "user": "gate"}}],
                    "users": [user],
                }
            )
        )
        program = processes.Program.start(
            "gate",
            [sys.executable, "-m", "agent", "gate", "--config", str(self._folder / "gate.yaml")],
            folder=self._folder,
            env={"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(prepare.DOCKERFILE.parent)},
        )
        try:
            yield program
        finally:
            program.stop()

    def _settings(self, percent: float | None) -> None:
        """Writes them, with the breaker's default or other limits; a running gate follows."""
        gate: dict[str, Any] = {
            "mode": "enforce",
            "stable_seconds": 0,
            "http_address": "127.0.0.1",
            "http_port": self._port,
        }
        if percent is not None:
            gate["breaker"] = {"recent_percent": percent, "total_percent": percent}
        new = self._folder / "gate.yaml.new"
        new.write_text(yaml.safe_dump({"gate": gate, "log_level": "warning"}))
        new.rename(self._folder / "gate.yaml")
        time.sleep(0 if percent is None else 10)  # it looks every five seconds

    def _until(self, what: str, check: Callable[[], object], seconds: float = 300) -> None:
        def look() -> object:
            try:
                return check()
            except OSError:
                return None

        waiting.until(what, look, seconds=seconds, every=0.1)

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def _sum(self, metric: str) -> float:
        lines = self._metrics().splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if re.match(rf"{metric}[ {{]", x))

    def _all_objects(self) -> bool:
        created = 'fabric_gate_fabricnode_writes_total{action="create",outcome="done"}'
        return f"{created} {float(len(self._names))}" in self._metrics()

    def _writes(self) -> float:
        """What the API server counted that only the gate writes; its Lease is renewed all the time."""
        page = self._api.kubectl("get", "--raw", "/metrics")
        lines = [x for x in page.splitlines() if x.startswith("apiserver_request_total{")]
        mine = [
            x
            for x in lines
            if re.search(r'verb="(PATCH|POST|PUT|DELETE)"', x)
            and (
                re.search(r'resource="(events|fabricnodes)"', x)
                or ('resource="nodes"' in x and 'subresource=""' in x)
            )
        ]
        return sum(float(x.rsplit(" ", 1)[1]) for x in mine)

    def _quiet(self) -> Result:
        """Writes while kubelets report and nothing changes."""
        before, started, sent = self._writes(), time.monotonic(), 0
        while time.monotonic() < started + _QUIET_SECONDS:
            name = self._names[sent % len(self._names)]
            beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now()}
            body = {"status": {"conditions": [beat]}}
            self._send("PATCH", f"/api/v1/nodes/{name}/status", body)
            sent += 1
            time.sleep(max(0.0, started + sent / _HEARTBEATS_PER_SECOND - time.monotonic()))
        return Result(
            value=self._writes() - before, unit=f"writes during {sent} heartbeats", target="0"
        )

    def _mass_event(self) -> Result:
        """The share that is closed when every node says False, and all is well again afterwards."""
        started = time.monotonic()
        self._each(functools.partial(self._set, "False"))
        took = time.monotonic() - started
        self._until("the breaker", lambda: self._sum("fabric_gate_held_nodes") > 0)
        time.sleep(15)
        closed = self._sum("fabric_gate_tainted_nodes")
        self._each(functools.partial(self._set, "True"))
        self._until("no taint", lambda: self._sum("fabric_gate_tainted_nodes") == 0, seconds=600)
        return Result(
            value=100 * closed / len(self._names),
            unit=f"% closed, all False within {took:.0f} s",
            target="<= 10",
        )

    def _changes(self) -> Result:
        """Condition False on the API server → taint seen by a watch of somebody else's."""
        count = min(len(self._names), _CHANGES_PER_SECOND * _CHANGE_SECONDS)
        names, sent = self._names[:count], dict[str, float]()
        with _TaintWatch(self._admin) as seen:
            started = time.monotonic()

            def change(number_and_name: tuple[int, str]) -> None:
                number, name = number_and_name
                time.sleep(max(0.0, started + number / _CHANGES_PER_SECOND - time.monotonic()))
                self._set("False", name)
                sent[name] = time.monotonic()

            with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
                for _ in pool.map(change, enumerate(names)):
                    pass
            rate = count / (time.monotonic() - started)
            self._until("every taint", lambda: len(seen.at) >= count)
            delays = sorted(max(0.0, seen.at[name] - sent[name]) for name in names)
        return Result(
            value=delays[int(0.99 * (len(delays) - 1))],
            unit=f"s at {rate:.0f} changes/s, median {statistics.median(delays):.3f}",
            target="<= 1",
        )


class _TaintWatch:
    """Notes when each node got our taint."""

    def __init__(self, api: connection.Connection) -> None:
        self._api = api
        self.at: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._version = self._api.get("/api/v1/nodes", {"limit": "1"})["metadata"][
            "resourceVersion"
        ]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        query = {"watch": "1", "resourceVersion": self._version, "timeoutSeconds": "600"}
        with (
            contextlib.suppress(errors.ApiError),  # the server ends before the thread does
            self._api.stream("/api/v1/nodes", query, silence_seconds=600) as lines,
        ):
            for line in lines:
                if self._over.is_set():
                    return
                if _KEY.encode() in line:
                    node = json.loads(line)["object"]
                    self.at.setdefault(node["metadata"]["name"], time.monotonic())


def _connect(kubeconfig: pathlib.Path) -> connection.Connection:
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = _WRITERS + 2
    config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    return connection.Connection(configuration)


def _node(name: str) -> dict[str, Any]:
    """As a cloud's kubelet makes it, with some twenty labels."""
    labels = {f"example.org/label-{number}": "a-value-of-some-length" for number in range(20)}
    metadata = {"name": name, "labels": {**labels, _POOL: "h200"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def _report(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "FabricReady", "status": status, "reason": reason, "message": "m"}
    annotations = {
        "fabric-readiness.dev/verified-boot-id": _BOOT,
        "fabric-readiness.dev/blocked-rung": "" if status == "True" else "loopback",
    }
    return {
        "metadata": {"annotations": annotations},
        "status": {"nodeInfo": {"bootID": _BOOT}, "conditions": [condition]},
    }


def _pod(node: str) -> dict[str, Any]:
    metadata = {"name": f"agent-{node}", "labels": {"app.kubernetes.io/name": "fabric-agent"}}
    container = {"name": "agent", "image": "none.invalid/none"}
    spec = {"nodeName": node, "serviceAccountName": "fabric-agent", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _status(pid: int) -> dict[str, float]:
    """Sizes of a process, MiB."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {x.split(":")[0]: int(x.split()[1]) / 1024 for x in lines if x.endswith(" kB")}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; 0 when all was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args(arguments)
    try:
        found = measure(options.nodes)
    except cache.RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rich.console.Console(width=120).print(results.table(found))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
