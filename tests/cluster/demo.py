"""`make demo`: two emulated nodes prove their fabric and are let in; one loses its link, is shut
out, and comes back.

Everything is installed as a user would: the image from the Dockerfile, `kubectl apply -k` of the
manifests. Each step waits for what it expects on the API server and says what it saw and how long
that took.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import rich.console
import rich.table

from tests.cluster import cache, prepare, state
from tests.cluster import cluster as clusters
from tests.cluster.watching import NodeWatch

OVERLAY = prepare.DOCKERFILE.parent / "manifests/overlays/demo"
NAMESPACE = "fabric-readiness"
TAINT = "readiness.k8s.io/FabricReady"
PORT_DOWN_SECONDS = 2.0
"""Budget: cable pulled → condition False on the API server."""

_REAL_AND_EMULATED = """\
Real:      etcd, kube-apiserver, controller-manager, scheduler, kubelets, containerd;
           the image from the Dockerfile and the manifests; verbs: RC queue pairs that move
           bytes through the kernel's RDMA stack.
Emulated:  the nodes are virtual machines with one core each, run by QEMU in software; their
           HCA is soft-RoCE (rdma_rxe) on a virtio NIC, so rates are those of emulation, and
           its cable is QEMU's, which pulls it; there are no GPUs.
"""
_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeSelector: {{{selector}}}
  terminationGracePeriodSeconds: 0
  containers:
    - {{name: work, image: "localhost/pause:rig", imagePullPolicy: Never}}
"""


class DifferenceError(Exception):
    """A step did not see what it expected."""


class Demo:
    """The steps, on a running cluster, and what each saw."""

    def __init__(self, running: clusters.Cluster, console: rich.console.Console) -> None:
        self._cluster = running
        self._console = console
        self.rows: list[tuple[str, str, str, float, bool]] = []

    def step(
        self,
        what: str,
        expected: str,
        look: Callable[[], tuple[bool, str]],
        *,
        seconds: float = 120,
    ) -> None:
        """Looks until it is as expected.

        Raises:
            DifferenceError: it was not, within `seconds`.
        """
        started = time.monotonic()
        self._console.print(f"… {what}", highlight=False)
        while True:
            good, seen = look()
            took = time.monotonic() - started
            if good or took > seconds:
                break
            time.sleep(0.25)
        self.record(what, expected, seen, took, good=good)

    def record(self, what: str, expected: str, seen: str, took: float, *, good: bool) -> None:
        """Shows a step's result and keeps it for the table."""
        mark = "[green]ok[/green]" if good else "[red]DIFFERS[/red]"
        self._console.print(f"[bold]{what}[/bold]  {mark}  {took:.1f} s")
        for line in seen.splitlines():
            self._console.print(f"    {line}", markup=False, highlight=False)
        self.rows.append((what, expected, seen, took, good))
        if not good:
            raise DifferenceError(what)

    def run(self) -> None:
        """All steps in order."""
        both = list(self._cluster.nodes)
        self.step(
            "both nodes registered", "Ready, tainted unverified", self._all(both, self._registered)
        )
        self._cluster.kubectl("apply", "-f", "-", stdin=_POD.format(name="workload", selector=""))
        self.step("workload pod waits", "Pending: untolerated taint", self._pending("workload"))
        self.install()
        self.step("taints gone", "no taint on either node", self._all(both, self._untainted))
        self.step("workload pod runs", "Running", self._pod_runs("workload"))
        self._pull_and_plug("node-b")

    def install(self) -> None:
        """Applies the manifests as a user would, and waits until every node is verified."""
        self._cluster.kubectl("apply", "--kustomize", str(OVERLAY))
        self.step(
            "agent and gate rolled out",
            "DaemonSet 2/2, Deployment 2/2",
            self._rolled_out,
            seconds=300,
        )
        both = list(self._cluster.nodes)
        self.step(
            "each node verified",
            "FabricReady=True",
            self._all(both, self._verified),
            seconds=300,
        )

    def _pull_and_plug(self, name: str) -> None:
        with NodeWatch(self._cluster.api, name) as watch:
            watch.wait_for("True", seconds=10)
            pulled = time.monotonic()
            self._cluster.nodes[name].pull_cable()
            seconds = watch.wait_for("False", seconds=60, since=pulled)
        seen = self._condition(name)
        good = seconds <= PORT_DOWN_SECONDS and "False PortDown" in seen
        expected = f"False, PortDown, within {PORT_DOWN_SECONDS:g} s"
        self.record(f"{name}: cable pulled", expected, seen, seconds, good=good)
        self.step(
            f"{name} tainted again",
            "taint driver:NoSchedule",
            lambda: self._tainted(name, "driver"),
        )
        pod = _POD.format(name="late", selector=f"kubernetes.io/hostname: {name}")
        self._cluster.kubectl("apply", "-f", "-", stdin=pod)
        self.step(f"new pod for {name} waits", "Pending: untolerated taint", self._pending("late"))
        self._cluster.nodes[name].plug_cable()
        self.step(
            f"{name}: cable back, verified again", "FabricReady=True", lambda: self._verified(name)
        )
        self.step(f"{name}: taint gone", "no taint", lambda: self._untainted(name))
        self.step("new pod runs", "Running", self._pod_runs("late"))

    def _all(
        self, names: list[str], look: Callable[[str], tuple[bool, str]]
    ) -> Callable[[], tuple[bool, str]]:
        def looked() -> tuple[bool, str]:
            found = [look(name) for name in names]
            return all(good for good, _ in found), "\n".join(seen for _, seen in found)

        return looked

    def _taint(self, name: str) -> str | None:
        """The value of our taint, None where the node has none."""
        taints = self._cluster.get("node", name)["spec"].get("taints", [])
        return next(
            (str(taint.get("value", "")) for taint in taints if taint["key"] == TAINT), None
        )

    def _registered(self, name: str) -> tuple[bool, str]:
        ready = self._cluster.condition(name).get("status")
        value = self._taint(name)
        return (ready, value) == (
            "True",
            "unverified",
        ), f"{name}: Ready={ready}, taint {TAINT}={value}"

    def _tainted(self, name: str, value: str) -> tuple[bool, str]:
        found = self._taint(name)
        return found == value, f"{name}: taint {TAINT}={found}"

    def _untainted(self, name: str) -> tuple[bool, str]:
        found = self._taint(name)
        return found is None, f"{name}: {'no taint' if found is None else f'taint {TAINT}={found}'}"

    def _condition(self, name: str) -> str:
        found = self._cluster.condition(name, "FabricReady")
        if not found:
            return f"{name}: no FabricReady condition yet"
        return f"{name}: FabricReady={found['status']} {found['reason']}: {found['message']}"

    def _verified(self, name: str) -> tuple[bool, str]:
        seen = self._condition(name)
        return "FabricReady=True" in seen, seen

    def _rolled_out(self) -> tuple[bool, str]:
        get = self._cluster.get
        agents = get("daemonset", "fabric-agent", "--namespace", NAMESPACE)["status"]
        gate = get("deployment", "fabric-gate", "--namespace", NAMESPACE)["status"]
        counts = (
            agents.get("numberReady", 0),
            agents.get("desiredNumberScheduled", 0),
            gate.get("readyReplicas", 0),
        )
        return counts == (
            2,
            2,
            2,
        ), f"agents ready: {counts[0]} of {counts[1]}; gates ready: {counts[2]} of 2"

    def _pod(self, name: str) -> Any:
        return self._cluster.get("pod", name, "--namespace", "default")

    def _pending(self, name: str) -> Callable[[], tuple[bool, str]]:
        def looked() -> tuple[bool, str]:
            status = self._pod(name)["status"]
            said = [
                c.get("message", "")
                for c in status.get("conditions", [])
                if c["type"] == "PodScheduled"
            ]
            words = said[0] if said else ""
            return status[
                "phase"
            ] == "Pending" and "untolerated taint" in words, f"{name}: {status['phase']}: {words}"

        return looked

    def _pod_runs(self, name: str) -> Callable[[], tuple[bool, str]]:
        def looked() -> tuple[bool, str]:
            found = self._pod(name)
            phase = found["status"]["phase"]
            return (
                phase == "Running",
                f"{name}: {phase} on {found['spec'].get('nodeName', 'no node')}",
            )

        return looked


def main() -> int:
    """Runs the demo; 0 when everything was as expected."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    keep = parser.parse_args().keep
    console = rich.console.Console(width=120 if not sys.stdout.isatty() else None)
    started = time.monotonic()
    console.print(_REAL_AND_EMULATED, highlight=False)
    try:
        state.require_none()
        images = prepare.everything()
        prepared = time.monotonic()
        running = clusters.Cluster.start(
            2, folder=state.folder() if keep else None, images=images, survives=keep
        )
    except cache.RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    demo = Demo(running, console)
    good = False
    try:
        demo.run()
        good = True
    except (DifferenceError, cache.RigError) as error:
        console.print(f"[red]{type(error).__name__}[/red]: ", end="")
        console.print(str(error), markup=False, highlight=False)
        console.print(running.evidence(), markup=False, highlight=False)
        _show_logs(running, console)
    finally:
        folder = state.detach(running) if keep else None
        if folder is None:
            running.stop(keep_logs=not good)
    console.print(_table(demo.rows))
    if not good:
        _say_how_busy(console)
    if folder is not None:
        _say_how_to_reach(folder, console)
    build, total = prepared - started, time.monotonic() - started
    console.print(
        f"{total:.0f} s in all: {build:.0f} s preparing, {running.ready_seconds:.0f} s to Ready nodes"
    )
    _write_result(total, demo.rows, good=good)
    return 0 if good else 1


def _show_logs(running: clusters.Cluster, console: rich.console.Console) -> None:
    for app in ("fabric-agent", "fabric-gate"):
        selector = f"--selector=app.kubernetes.io/name={app}"
        try:
            said = running.kubectl(
                "logs", "--namespace", NAMESPACE, selector, "--prefix", "--tail=20"
            )
        except cache.RigError as error:
            said = str(error)
        console.print(f"{app}:\n{said}", markup=False, highlight=False)


def _say_how_busy(console: rich.console.Console) -> None:
    """Two emulated machines want two processors: where others want them too, waits run out."""
    load, processors = os.getloadavg()[0], os.cpu_count()
    console.print(
        f"This machine has {processors} processors and a load of {load:.1f}; the demo alone makes about 3. "
        "Where more is going on, run it again when less is.",
        highlight=False,
    )


def _say_how_to_reach(folder: pathlib.Path, console: rich.console.Console) -> None:
    console.print("The cluster stays up. Look around, and end it with `make demo-down`:")
    for line in ("kubectl get nodes", "shell node-a rdma link"):
        console.print(f"  {folder}/{line}", highlight=False)


def _table(rows: list[tuple[str, str, str, float, bool]]) -> rich.table.Table:
    table = rich.table.Table(title="Expected and seen")
    for column in ("step", "expected", "seen"):
        table.add_column(column, overflow="fold")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for what, expected, seen, took, good in rows:
        table.add_row(what, expected, _short(seen), f"{took:.1f}", "ok" if good else "DIFFERS")
    return table


def _short(seen: str) -> str:
    lines = list(_shortened(seen))
    return "\n".join(lines)


def _shortened(seen: str) -> Iterator[str]:
    for line in seen.splitlines():
        yield line if len(line) <= 160 else line[:157] + "…"


def _write_result(
    total: float, rows: list[tuple[str, str, str, float, bool]], *, good: bool
) -> None:
    """Leaves the times for `make bench` and for whoever compares runs."""
    target = prepare.DOCKERFILE.parent / "build"
    target.mkdir(exist_ok=True)
    steps = {what: round(took, 2) for what, _, _, took, _ in rows}
    (target / "demo.json").write_text(
        json.dumps({"seconds": round(total, 1), "good": good, "steps": steps}, indent=1)
    )


if __name__ == "__main__":
    sys.exit(main())
