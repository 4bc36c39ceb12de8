"""The whole gate, as a process with the rights that it is given, over bare nodes on a real API server."""

import contextlib
import http.client
import json
import pathlib
import sys
from collections.abc import Callable, Iterator

from tests.agent.gate import objects
from tests.agent.gate.objects import KEY, NEXT_BOOT, OTHERS
from tests.cluster import controlplane, processes, waiting

PROJECT = pathlib.Path(__file__).parents[3]
_PROGRAM = """
import pathlib, sys
from agent import logs, settings
from agent.gate import loop
logs.set_up("info")
sys.exit(loop.run(settings.load(pathlib.Path(sys.argv[1]))))
"""
STARTUP = {"key": KEY, "value": "unverified", "effect": "NoSchedule"}


class Gate:
    """A running gate."""

    def __init__(self, program: processes.Program, port: int) -> None:
        self.program = program
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 while nothing listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def value(self, sample: str) -> float:
        """A sample of /metrics, by its line up to the value; 0 where it is not there."""
        lines = self.get("/metrics")[1].splitlines()
        found = [line for line in lines if line.startswith(f"{sample} ")]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


@contextlib.contextmanager
def gate(pool: objects.Pool, folder: pathlib.Path, **changes: object) -> Iterator[Gate]:
    """A gate over the pool, with short waits; stopped afterwards."""
    port = controlplane.free_port()
    values: dict[str, object] = {
        "mode": "enforce",
        "pool_label": pool.label,
        "namespace": pool.namespace,
        "absence_grace_seconds": 4,
        "stable_seconds": 1,
        "http_address": "127.0.0.1",
        "http_port": port,
    }
    settings = folder / "config.yaml"
    settings.write_text(json.dumps({"gate": values | changes}))  # JSON is YAML
    kubeconfig = folder / "gate.kubeconfig"
    _allow(pool, kubeconfig)
    program = processes.Program.start(
        "gate",
        [sys.executable, "-W", "error", "-c", _PROGRAM, settings],
        folder=folder,
        env={"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(PROJECT)},
    )
    running = Gate(program, port)
    try:
        until(running, "the gate to see", lambda: running.get("/readyz")[0] == 200)
        yield running
    finally:
        program.stop()
    assert 0 == program.process.returncode, program.tail(40)


def until(running: Gate, what: str, check: Callable[[], object], seconds: float = 20) -> None:
    """Waits until it is so, while the gate runs."""

    def look() -> object:
        running.program.require_running()
        return check()

    detail = running.program.tail
    waiting.until(what, look, seconds=seconds, every=0.05, detail=detail)


def _allow(pool: objects.Pool, kubeconfig: pathlib.Path) -> None:
    """Gives the gate the rights that the design gives it, and no other."""
    user = f"gate-{pool.id}"
    pool.api.write_kubeconfig(kubeconfig, user, "rig")
    rights = [
        ("nodes", ["get", "list", "watch", "patch"]),
        ("pods", ["list", "watch"]),
        ("events", ["create"]),
    ]
    api = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in rights]
    for manifest in (
        {"kind": "ClusterRole", "metadata": {"name": user}, "rules": rules},
        {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
        },
    ):
        pool.api.apply(json.dumps({"apiVersion": f"{api}/v1", **manifest}))


def _verified(pool: objects.Pool, name: str = "a") -> str:
    """A node that is proven in this boot and watched by a ready agent."""
    node = pool.add(name)
    pool.agent(node, ready=True)
    pool.report(node, "True", "FabricVerified")
    return node


def test_node_is_let_in_shut_out_and_let_in_again(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """The whole life of a node: startup taint, verified, a cable pulled, and back."""
    node = pool.add(taints=[OTHERS, STARTUP])
    others = [taint for taint in pool.taints(node) if taint["key"] != KEY]
    with gate(pool, tmp_path) as running:
        pool.agent(node, ready=True)
        pool.report(node, "Unknown", "Verifying", boot="", rung="inventory")
        assert "unverified" == pool.taint(node)
        pool.report(node, "True", "FabricVerified")
        until(running, "the taint to go", lambda: pool.taint(node) is None)
        pool.report(node, "False", "PortDown", rung="driver")
        until(running, "the taint", lambda: pool.taint(node) == "driver")
        pool.report(node, "True", "FabricVerified")
        until(running, "the taint to go again", lambda: pool.taint(node) is None)
        assert others == pool.taints(node)
        until(running, "the events", lambda: len(pool.events(node)) == 3)
        assert [
            ("FabricUngated", "Open for work: verified in this boot and watched"),
            ("FabricGated", "Closed for new work (driver): FabricReady is False (PortDown)"),
            ("FabricUngated", "Open for work: verified in this boot and watched"),
        ] == pool.events(node)
        assert 2 == running.value('fabric_gate_taint_writes_total{action="untaint",outcome="done"}')
        assert 1 == running.value('fabric_gate_nodes{cause="ready"}')
        assert 3 == running.value("fabric_gate_taint_delay_seconds_count")
        assert 0 == running.value("fabric_gate_tainted_nodes")


def test_new_node_without_startup_taint_gets_one(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """A node that registers while the gate runs is closed before anything is known of it."""
    with gate(pool, tmp_path) as running:
        node = pool.add()
        until(running, "the taint", lambda: pool.taint(node) == "unverified")


def test_reboot_closes_before_the_agent_says_anything(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """The kubelet's new boot id alone closes the node, whatever the condition still says."""
    node = _verified(pool)
    with gate(pool, tmp_path) as running:
        assert pool.taint(node) is None
        pool.report_boot(node, NEXT_BOOT)
        until(running, "the taint", lambda: pool.taint(node) == "unverified")
        pool.report(node, "True", "FabricVerified", boot=NEXT_BOOT)
        until(running, "the taint to go", lambda: pool.taint(node) is None)


def test_agent_that_stays_away_closes_its_node(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """Absence shorter than the grace changes nothing; longer closes; return opens."""
    unready, missing = _verified(pool, "unready"), _verified(pool, "missing")
    both = (unready, missing)
    with gate(pool, tmp_path) as running:
        pool.agent(unready, ready=False)
        pool.remove_agent(missing)
        assert [None, None] == [pool.taint(node) for node in both]
        until(running, "both taints", lambda: {pool.taint(node) for node in both} == {"agent"})
        for node in both:
            pool.agent(node, ready=True)
        until(running, "no taint", lambda: {pool.taint(node) for node in both} == {None})


def test_observe_writes_nothing_and_says_what_it_would_do(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """In mode observe a node that should be closed or opened is counted and logged, once."""
    bad, good = pool.add("bad"), pool.add("good", taints=[STARTUP])
    pool.agent(good, ready=True)
    pool.report(good, "True", "FabricVerified")
    before = [pool.get(node)["metadata"]["resourceVersion"] for node in (bad, good)]
    with gate(pool, tmp_path, mode="observe") as running:
        withheld = 'fabric_gate_withheld_writes_total{{action="{}"}}'
        until(running, "taint", lambda: running.value(withheld.format("taint")) == 1)
        until(running, "untaint", lambda: running.value(withheld.format("untaint")) == 1)
        assert before == [pool.get(node)["metadata"]["resourceVersion"] for node in (bad, good)]
        assert [] == pool.events(bad) + pool.events(good)
        pool.report(bad, "Unknown", "Verifying", boot="")
        until(
            running,
            "the cause",
            lambda: running.value('fabric_gate_nodes{cause="other_boot"}') == 1,
        )
        assert 1 == running.value(withheld.format("taint"))
        assert 0 == running.value("fabric_gate_enforcing")
        assert (
            f"observe: would taint {bad}: its agent has reported nothing" in running.program.tail()
        )


def test_outage_of_the_api_server_changes_nothing_and_is_caught_up(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """While the server is away the gate is not ready and holds; afterwards it does what is due."""
    falls, rises = _verified(pool, "falls"), pool.add("rises", taints=[STARTUP])
    pool.agent(rises, ready=True)
    with gate(pool, tmp_path) as running:
        pool.api.stop_server()
        until(running, "blindness", lambda: running.get("/readyz")[0] == 503)
        assert 200 == running.get("/healthz")[0]
        pool.api.start_server()
        pool.report(falls, "False", "PortDown", rung="driver")
        pool.report(rises, "True", "FabricVerified")
        until(running, "the taint", lambda: pool.taint(falls) == "driver", seconds=60)
        until(running, "the taint to go", lambda: pool.taint(rises) is None)
        assert 200 == running.get("/readyz")[0]


def test_restarted_gate_leaves_everything_as_it_is(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """A new gate writes nothing on nodes that are as they should be, and opens none without proof."""
    good, bad = _verified(pool, "good"), _verified(pool, "bad")
    pool.report(bad, "False", "PortDown", rung="driver")
    with gate(pool, tmp_path) as running:
        until(running, "the taint", lambda: pool.taint(bad) == "driver")
        until(running, "the event", lambda: len(pool.events(bad)) == 1)
    before = [pool.get(node)["metadata"]["resourceVersion"] for node in (good, bad)]
    with gate(pool, tmp_path) as running:
        until(running, "decisions", lambda: running.value('fabric_gate_nodes{cause="ready"}') == 1)
        assert before == [pool.get(node)["metadata"]["resourceVersion"] for node in (good, bad)]
    assert "driver" == pool.taint(bad)


def test_gate_without_an_api_server_to_find_says_so(tmp_path: pathlib.Path) -> None:
    """Neither pod nor kubeconfig: one line, exit code 1."""
    settings = tmp_path / "config.yaml"
    settings.write_text("{}")
    program = processes.Program.start(
        "gate",
        [sys.executable, "-c", _PROGRAM, settings],
        folder=tmp_path,
        env={"KUBECONFIG": str(tmp_path / "none"), "PYTHONPATH": str(PROJECT)},
    )
    assert 1 == program.process.wait(20)
    (line,) = program.log.read_text().splitlines()
    assert "the gate can't start: no API server" in line
