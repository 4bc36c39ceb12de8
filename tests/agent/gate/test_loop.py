"""The whole gate, as a process with the rights that it is given, over bare nodes on a real API server."""

import contextlib
import datetime as dt
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.agent.gate import objects
from tests.agent.gate.objects import BOOT, KEY, NEXT_BOOT, OTHERS
from tests.cluster import controlplane, processes, waiting

PROJECT = pathlib.Path(__file__).parents[3]
_PROGRAM = """
import pathlib, sys
from agent import logs, settings
from agent.gate import loop
logs.set_up("info")
read = lambda: settings.load(pathlib.Path(sys.argv[1]))
sys.exit(loop.run(read(), read))
"""
STARTUP = {"key": KEY, "value": "unverified", "effect": "NoSchedule"}


class Gate:
    """A running gate."""

    def __init__(self, program: processes.Program, port: int, settings: pathlib.Path) -> None:
        self.program = program
        self.port = port
        self.killed = False
        self._settings = settings

    def set(self, **changes: object) -> None:
        """Changes settings in the file, as the kubelet does when the ConfigMap changed."""
        values = json.loads(self._settings.read_text())
        values["gate"] |= changes
        new = self._settings.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.rename(self._settings)

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
def gate(
    pool: objects.Pool, folder: pathlib.Path, *, leads: bool = True, **changes: object
) -> Iterator[Gate]:
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
    running = Gate(program, port, settings)
    try:
        until(running, "the gate to see", lambda: running.get("/readyz")[0] == 200)
        if leads:
            until(running, "leadership", lambda: running.value("fabric_gate_leading") == 1)
        yield running
    finally:
        program.stop()
    if not running.killed:
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
        ("", "nodes", ["get", "list", "watch", "patch"]),
        ("", "pods", ["list", "watch"]),
        ("", "events", ["create"]),
        ("coordination.k8s.io", "leases", ["get", "create", "update"]),
        ("fabric-readiness.dev", "fabricnodes", ["list", "watch", "create", "patch", "delete"]),
    ]
    api = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [group], "resources": [what], "verbs": verbs} for group, what, verbs in rights
    ]
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
    node, other = _verified(pool, "unready"), _verified(pool, "other")
    with gate(pool, tmp_path) as running:
        pool.agent(node, ready=False)
        assert pool.taint(node) is None
        until(running, "the taint", lambda: pool.taint(node) == "agent")
        pool.agent(node, ready=True)
        until(running, "no taint", lambda: pool.taint(node) is None)
        assert pool.taint(other) is None


def test_agents_that_are_all_away_close_nobody(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """A bad image of the agent is no fault of the nodes; those that stay away longer than others are."""
    nodes = [_verified(pool, name) for name in ("one", "two")]
    with gate(pool, tmp_path) as running:
        for node in nodes:
            pool.remove_agent(node)
        held = 'fabric_gate_held_nodes{pool="rig"}'
        until(running, "the hold", lambda: running.value(held) == len(nodes))
        time.sleep(5)  # longer than the grace
        assert [None, None] == [pool.taint(node) for node in nodes]
        pool.agent(nodes[0], ready=True)
        until(running, "the taint", lambda: pool.taint(nodes[1]) == "agent")
        assert pool.taint(nodes[0]) is None
        assert 0 == running.value(held)


def test_observe_closes_nothing_says_what_it_would_close_and_opens_what_is_proven(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """In mode observe a node that should be closed is counted and logged, once; nobody is stranded."""
    bad, good = pool.add("bad"), pool.add("good", taints=[STARTUP])
    pool.agent(good, ready=True)
    pool.report(good, "True", "FabricVerified")
    pool.report(bad, "False", "PortDown", rung="driver")
    before = pool.get(bad)["metadata"]["resourceVersion"]
    with gate(pool, tmp_path, mode="observe") as running:
        withheld = 'fabric_gate_withheld_writes_total{{action="{}"}}'
        until(running, "taint", lambda: running.value(withheld.format("taint")) == 1)
        until(running, "the taint to go", lambda: pool.taint(good) is None)
        assert before == pool.get(bad)["metadata"]["resourceVersion"]
        assert [] == pool.events(bad)
        pool.report(bad, "False", "LoopbackSlow", rung="driver")
        pool.agent(bad, ready=True)
        assert 1 == running.value(withheld.format("taint"))
        assert 0 == running.value("fabric_gate_enforcing")
        assert f"would taint {bad}: FabricReady is False (PortDown)" in running.program.tail()


def test_another_controller_may_write_the_taint(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """In mode nrc no taint is written, removed or taken off a node that leaves; what would be is said."""
    bad, good, leaving = (
        pool.add("bad"),
        *(pool.add(n, taints=[STARTUP]) for n in ("good", "out")),
    )
    pool.agent(good, ready=True)
    pool.report(good, "True", "FabricVerified")
    pool.report(bad, "False", "PortDown", boot=BOOT, rung="driver")
    before = {node: pool.get(node) for node in (bad, good)}
    with gate(pool, tmp_path, mode="nrc") as running:
        withheld = 'fabric_gate_withheld_writes_total{{action="{}"}}'
        until(running, "taint", lambda: running.value(withheld.format("taint")) == 1)
        until(running, "untaint", lambda: running.value(withheld.format("untaint")) == 1)
        until(running, "its object", lambda: pool.fabric_node(leaving))
        pool.api.kubectl("label", "node", leaving, f"{pool.label}-")
        until(running, "its object to go", lambda: pool.fabric_node(leaving) is None)
        assert "unverified" == pool.taint(leaving)
        assert before == {node: pool.get(node) for node in before}
        assert 0 == running.value("fabric_gate_writes_taints")
        assert "mode nrc: this gate neither writes" in running.program.tail(100)
        running.set(mode="enforce")
        until(running, "the gate to open", lambda: pool.taint(good) is None)
        assert 1 == running.value("fabric_gate_writes_taints")


def test_enforce_in_a_running_cluster_closes_no_working_node(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """Switched on without a restart: nodes without proof are adopted, failures count, new ones are strict."""
    silent, failing, proven = pool.add("silent"), pool.add("failing"), _verified(pool, "proven")
    pool.report(failing, "False", "PortDown", boot="", rung="driver")
    with gate(pool, tmp_path, mode="observe") as running:
        until(running, "adoption", lambda: _adopted_boot(pool, silent) == BOOT)
        until(running, "adoption", lambda: _adopted_boot(pool, failing) == BOOT)
        running.set(mode="enforce")
        until(running, "the taint", lambda: pool.taint(failing) == "driver")
        new = pool.add("new")
        until(running, "the new one's taint", lambda: pool.taint(new) == "unverified")
        assert [None, None] == [pool.taint(node) for node in (silent, proven)]
        assert 1 == running.value('fabric_gate_nodes{cause="adopted"}')
        assert "" == _adopted_boot(pool, new) == _adopted_boot(pool, proven)
        pool.report_boot(silent, NEXT_BOOT)
        until(running, "the taint after a reboot", lambda: pool.taint(silent) == "unverified")


def _adopted_boot(pool: objects.Pool, node: str) -> str:
    found = pool.fabric_node(node) or {}
    return str(found.get("spec", {}).get("adopted", {}).get("bootID", ""))


def test_enforce_from_the_first_moment_adopts_what_was_there(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """Installed in mode enforce: older nodes go on working, those that wait for their proof wait on."""
    old, waiting_ = pool.add("old"), pool.add("waiting", taints=[STARTUP])
    time.sleep(1)  # the API's times have whole seconds
    with gate(pool, tmp_path) as running:
        new = pool.add("new")
        until(running, "the new one's taint", lambda: pool.taint(new) == "unverified")
        until(running, "adoption", lambda: _adopted_boot(pool, old) == BOOT)
        assert [None, "unverified"] == [pool.taint(node) for node in (old, waiting_)]


def test_override_opens_a_node_until_it_ends(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """A human opens a closed node for some seconds, with a reason that the event repeats."""
    node = _verified(pool)
    pool.report(node, "False", "PortDown", rung="driver")
    with gate(pool, tmp_path) as running:
        until(running, "the taint", lambda: pool.taint(node) == "driver")
        until(running, "the object", lambda: pool.fabric_node(node))
        until_ = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=8)
        pool.override(node, "drill", until_.isoformat(timespec="seconds"))
        until(running, "the taint to go", lambda: pool.taint(node) is None)
        until(running, "the event", lambda: any("drill" in said for _, said in pool.events(node)))
        until(running, "the taint again", lambda: pool.taint(node) == "driver")


def test_node_that_leaves_the_pool_is_left_as_others_want_it(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """Its label is taken away: our taint and our object go, also when the gate was down meanwhile."""
    one, two = (pool.add(name, taints=[OTHERS, STARTUP]) for name in ("one", "two"))
    others = [taint for taint in pool.taints(one) if taint["key"] != KEY]
    with gate(pool, tmp_path) as running:
        until(running, "the objects", lambda: pool.fabric_node(one) and pool.fabric_node(two))
        pool.api.kubectl("label", "node", one, f"{pool.label}-")
        until(running, "the taint to go", lambda: pool.taint(one) is None)
        until(running, "the object to go", lambda: pool.fabric_node(one) is None)
    pool.api.kubectl("label", "node", two, f"{pool.label}-")
    with gate(pool, tmp_path) as running:
        until(running, "the taint to go", lambda: pool.taint(two) is None)
        until(running, "the object to go", lambda: pool.fabric_node(two) is None)
    for node in (one, two):
        assert others == [taint for taint in pool.taints(node) if taint["key"] == OTHERS["key"]]


def test_created_anew_node_gets_a_new_object(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """What was written about the node before it under the same name does not open it."""
    node = pool.add(taints=[STARTUP])
    with gate(pool, tmp_path) as running:
        until(running, "the object", lambda: pool.fabric_node(node))
        pool.override(node, "drill", "2099-01-01T00:00:00Z")
        until(running, "the taint to go", lambda: pool.taint(node) is None)
        pool.remove(node)
        pool.add(taints=[STARTUP])
        until(running, "the new object", lambda: _owner(pool, node) == pool.view(node).uid)
        assert "unverified" == pool.taint(node)


def _owner(pool: objects.Pool, node: str) -> str:
    found = pool.fabric_node(node)
    return str(found["metadata"]["ownerReferences"][0]["uid"]) if found else ""


def test_second_replica_takes_over_when_the_first_is_killed(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """The follower sees all and does nothing; when the Lease has run out it leads."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    node = pool.add(taints=[STARTUP])
    with gate(pool, folders[0]) as first, gate(pool, folders[1], leads=False) as second:
        assert (1, 0) == tuple(one.value("fabric_gate_leading") for one in (first, second))
        first.program.process.kill()
        pool.agent(node, ready=True)
        pool.report(node, "True", "FabricVerified")
        until(second, "the taint to go", lambda: pool.taint(node) is None, seconds=40)
        first.killed = True


def test_what_is_probably_not_meant_is_said(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """A selector that chooses nobody, and one that chooses the control plane."""
    with gate(pool, tmp_path, node_selector="example.org/no=where") as running:
        until(running, "word", lambda: "no node is in a pool" in running.program.tail())
    node = pool.add()
    pool.api.kubectl("label", "node", node, "node-role.kubernetes.io/control-plane=")
    with gate(pool, tmp_path) as running:
        words = f"control-plane nodes are in a pool: {node} (1)"
        until(running, "word", lambda: words in running.program.tail())


def test_dry_run_tells_what_enforce_would_do(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """As a table and as JSON, with an exit code; written is nothing."""
    silent, failing = pool.add("silent"), pool.add("failing", taints=[])
    closed, proven = pool.add("closed", taints=[STARTUP]), _verified(pool, "proven")
    pool.report(failing, "False", "PortDown", rung="driver")
    nodes = (silent, failing, closed, proven)
    before = [pool.get(node)["metadata"]["resourceVersion"] for node in nodes]
    code, said = _dry_run(pool, tmp_path)
    assert 1 == code
    assert "4 nodes: mode enforce would close 1 that are open now, and adopt 1." in said
    assert "FabricReady is False (PortDown)" in said
    code, said = _dry_run(pool, tmp_path, "--json")
    assert [
        (closed, "unverified", "unverified", "unreported"),
        (failing, None, "driver", "not_ready"),
        (proven, None, None, "ready"),
        (silent, None, None, "adopted"),
    ] == [(one["node"], one["taint"], one["would_be"], one["cause"]) for one in json.loads(said)]
    assert before == [pool.get(node)["metadata"]["resourceVersion"] for node in nodes]
    pool.report(failing, "True", "FabricVerified")
    assert 0 == _dry_run(pool, tmp_path)[0]


def _dry_run(pool: objects.Pool, folder: pathlib.Path, *more: str) -> tuple[int, str]:
    path = folder / "dry-run.yaml"
    values = {"pool_label": pool.label, "namespace": pool.namespace, "mode": "observe"}
    path.write_text(json.dumps({"gate": values}))
    done = subprocess.run(
        [sys.executable, "-m", "agent", "gate", "--dry-run", "--config", path, *more],
        cwd=PROJECT,
        env={**os.environ, "KUBECONFIG": str(pool.api.admin_kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split()) if not more else done.stdout


def test_two_gates_of_two_installations_do_not_fight(
    pool: objects.Pool, tmp_path: pathlib.Path
) -> None:
    """Each writes its own key, once; the FabricNode is the first one's, and the other's nodes are left alone."""
    other_key = "example.org/second-gate"
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    second_namespace = f"{pool.namespace}-2"
    name = {"name": second_namespace}
    pool.api.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": name}))
    with gate(pool, folders[0]) as first:
        node = pool.add()
        until(first, "its taint", lambda: pool.taint(node) == "unverified")
        until(first, "its object", lambda: pool.fabric_node(node))
        owner = pool.fabric_node(node)
        with gate(pool, folders[1], taint_key=other_key, namespace=second_namespace) as second:
            new = pool.add("new")
            for one in (first, second):
                until(one, "both taints", lambda: len(pool.taints(new)) == 2)
            assert {KEY, other_key} == {taint["key"] for taint in pool.taints(new)}
            before = [pool.get(one)["metadata"]["resourceVersion"] for one in (node, new)]
            time.sleep(3)
            assert before == [pool.get(one)["metadata"]["resourceVersion"] for one in (node, new)]
            assert owner == pool.fabric_node(node)


def test_wrong_settings_change_nothing(pool: objects.Pool, tmp_path: pathlib.Path) -> None:
    """A mistake in the ConfigMap is said once, and what was in force stays."""
    node = pool.add(taints=[STARTUP])
    with gate(pool, tmp_path) as running:
        running.set(mode="enfroce")
        until(running, "word", lambda: running.value("fabric_gate_settings_refused") == 1)
        assert "the settings in force stay" in running.program.tail()
        pool.agent(node, ready=True)
        pool.report(node, "True", "FabricVerified")
        until(running, "the taint to go", lambda: pool.taint(node) is None)
        running.set(mode="observe")
        until(running, "word", lambda: running.value("fabric_gate_enforcing") == 0)
        assert 0 == running.value("fabric_gate_settings_refused")


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
