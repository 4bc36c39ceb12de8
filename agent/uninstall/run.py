"""`fabric-ready uninstall`: stops what writes, then takes off the Nodes and out of the cluster what was written.

It works with an administrator's rights, whether agents and gate still run or are long gone, and may be
run again at any time. What runs is stopped first and seen to end, so that nothing is written anew.
"""

import concurrent.futures
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from agent import settings_file
from agent.cluster import connection, errors
from agent.gate import fabricnodes
from agent.settings import GateSettings, Settings, SettingsError, is_taint_key
from agent.uninstall import names
from agent.uninstall.nodes import Cleaner, Sight
from agent.uninstall.report import Report
from agent.uninstall.server import Server

_GATE_SELECTOR = "app.kubernetes.io/name=fabric-gate"
_ROUNDS = 3
_THREADS = 8


def run(settings: Settings, *, everything: bool, dry_run: bool, patience_seconds: float) -> int:
    """Finds the API server and uninstalls, as `remove` says."""
    try:
        api = connection.Connection.find()
        api.get("/version")
    except errors.ApiError as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return 1
    return remove(
        api, settings, everything=everything, dry_run=dry_run, patience_seconds=patience_seconds
    )


def remove(
    api: connection.Connection,
    settings: Settings,
    *,
    everything: bool = False,
    dry_run: bool = False,
    patience_seconds: float = 120.0,
) -> int:
    """Uninstalls, prints what became of each kind, and gives the exit code.

    Args:
        api: an administrator's connection.
        settings: the namespace and the taint key of the installation.
        everything: what the manifests installed goes too.
        dry_run: says what would go, and writes nothing.
        patience_seconds: how long a call is repeated and an object's end is waited for.

    Returns:
        0 when nothing is left, 1 when something is.
    """
    report = Report(dry_run=dry_run)
    server = Server(api, patience_seconds=patience_seconds, dry_run=dry_run)
    _Uninstall(server, report, settings.gate).run(everything=everything)
    return report.end()


class _Uninstall:
    """One run over one installation."""

    def __init__(self, server: Server, report: Report, gate: GateSettings) -> None:
        self._server = server
        self._report = report
        self._gate = gate
        self._pods_seen: set[str] = set()

    def run(self, *, everything: bool) -> None:
        """Each step needs the one before it to have been done."""
        steps: list[Callable[[], None]] = [self._rules, self._writers]
        if everything:
            steps.append(functools.partial(self._delete, names.RIGHTS))
        steps += [self._end, self._nodes, self._fabric_nodes]
        if everything:
            steps += [functools.partial(self._delete, names.POLICIES), self._namespace]
        for step in steps:
            before = len(self._report.left)
            try:
                step()
            except errors.ApiError as error:
                self._report.leave("the rest", str(error))
            # The settings in the cluster name the taint, so they stay until the nodes are clean. A pod
            # on a node that is gone for good holds nothing up.
            if len(self._report.left) > before and step != self._end:
                return

    def _rules(self) -> None:
        """A rule of node-readiness-controller that wants our condition closes every node that lacks it."""
        ours: list[str] = []
        others: list[str] = []
        for rule in self._server.items(names.RULES):
            wanted = {one.get("type") for one in (rule.get("spec") or {}).get("conditions") or []}
            if wanted & set(names.CONDITIONS):
                (ours if _is_part(rule) else others).append(rule["metadata"]["name"])
        for name in others:
            why = "wants our condition and would close every node without it; delete it first"
            self._report.leave(f"nodereadinessrules/{name}", why)
        if not others:
            self._delete([f"{names.RULES}/{name}" for name in ours], wait=True)

    def _writers(self) -> None:
        """What gives new nodes the taint, and what runs gate and agents."""
        self._pods_seen = self._pods()
        self._delete([*names.STARTUP_TAINT, *names.workloads(self._gate.namespace)])

    def _end(self) -> None:
        """Waits until no gate and no agent is there to write anything anew."""
        asked: set[str] = set()

        def ended() -> bool:
            found = self._pods()
            self._each(found - asked)
            asked.update(found)
            return not found

        if not self._server.wait(ended) and not self._server.dry_run:
            for path in sorted(self._pods()):
                why = "has not ended and may write again; is its node there?"
                self._report.leave(f"pod {path.rsplit('/', 1)[1]}", why)
        self._report.removed("pods", len(self._pods_seen | asked))
        self._delete([names.lease(self._gate.namespace)])

    def _pods(self) -> set[str]:
        path = f"/api/v1/namespaces/{self._gate.namespace}/pods"
        return {
            f"{path}/{pod['metadata']['name']}"
            for selector in (self._gate.agent_selector, _GATE_SELECTOR)
            for pod in self._server.items(path, selector)
        }

    def _nodes(self) -> None:
        cleaner = Cleaner(self._server, keys=self._keys(), spare=self._foreign(self._owners()))
        first = sight = cleaner.look()
        failed: Mapping[str, str] = cleaner.clean(sight)
        for _ in range(_ROUNDS):
            if self._server.dry_run or not sight.found:
                break
            # Nodes may have come, and what was stopped may have written a last time.
            sight = cleaner.look()
            if sight.found:
                failed = cleaner.clean(sight)
        self._count(first)
        if not self._server.dry_run:
            for one in sight.found:
                self._report.leave(f"node {one.name}", failed.get(one.name, "is written anew"))

    def _count(self, sight: Sight) -> None:
        for kind in ("taints", "conditions", "labels", "annotations"):
            counts = [len(getattr(one, kind)) for one in sight.found]
            nodes = sum(1 for count in counts if count)
            self._report.removed(f"{kind} of nodes", sum(counts), f"{nodes} of {sight.nodes} nodes")

    def _keys(self) -> set[str]:
        """The taint's key: those that are known, the settings', and those of the settings in the cluster."""
        path = f"/api/v1/namespaces/{self._gate.namespace}/configmaps"
        keys = {*names.TAINT_KEYS, self._gate.taint_key}
        for found in self._server.items(path, names.PART_OF):
            name = found["metadata"]["name"]
            text = (found.get("data") or {}).get("config.yaml", "")
            try:
                gate = settings_file.parse(text, Path(name)).values.get("gate")
            except SettingsError as error:
                self._report.leave(f"settings in {name}", str(error))
                continue
            key = gate.get("taint_key") if isinstance(gate, dict) else None
            if isinstance(key, str) and is_taint_key(key):
                keys.add(key)
        return keys

    def _owners(self) -> dict[str, str]:
        """FabricNode → namespace of its gate; empty where there is no such namespace (any more)."""

        def read() -> dict[str, str]:
            return {
                one["metadata"]["name"]: (one["metadata"].get("labels") or {}).get(
                    fabricnodes.GATE, ""
                )
                for page in self._server.pages(names.FABRIC_NODES)
                for one in page
            }

        owners = self._server.whole(read)
        there = {
            namespace
            for namespace in set(owners.values()) - {""}
            if self._server.get(f"/api/v1/namespaces/{namespace}")
        }
        return {name: gate if gate in there else "" for name, gate in owners.items()}

    def _foreign(self, owners: Mapping[str, str]) -> set[str]:
        """Those of the gate of another namespace."""
        return {name for name, gate in owners.items() if gate not in {"", self._gate.namespace}}

    def _fabric_nodes(self) -> None:
        """The objects, and their kind with them where nobody else has any."""
        owners = self._owners()
        others = self._foreign(owners)
        mine = owners.keys() - others
        self._report.removed("fabricnodes", len(mine))
        if others:
            self._each(f"{names.FABRIC_NODES}/{name}" for name in mine)
            why = f"{len(others)} FabricNodes belong to another installation"
            self._report.kept("the FabricNodes' CRD", why)
            return
        self._delete([names.CRD], wait=True)
        for one in self._server.items(names.FABRIC_NODES) if self._report.left else []:
            self._report.leave(f"fabricnode {one['metadata']['name']}", _why(one))

    def _namespace(self) -> None:
        """The namespace with all that is in it, if it is the manifests'; else what they put there."""
        name = self._gate.namespace
        path = f"/api/v1/namespaces/{name}"
        found = self._server.get(path)
        if found is None or _is_part(found):
            self._delete([path], wait=True)
            return
        self._report.kept(f"namespace {name}", "the manifests did not make it")
        settings = f"{path}/configmaps"
        maps = [one["metadata"]["name"] for one in self._server.items(settings, names.PART_OF)]
        self._delete([*names.namespaced(name), *(f"{settings}/{one}" for one in maps)])

    def _each(self, paths: Iterable[str]) -> None:
        """Deletes many objects of a kind."""
        if self._server.dry_run:
            return
        with concurrent.futures.ThreadPoolExecutor(_THREADS, "remover") as pool:
            for _ in pool.map(self._server.delete, paths):
                pass  # a failure comes out here

    def _delete(self, paths: Iterable[str], *, wait: bool = False) -> None:
        """Deletes objects, a line for each kind; where asked, sees them end."""
        counts: dict[str, int] = {}
        for path in paths:
            kind = path.rsplit("/", 2)[1]
            counts[kind] = counts.get(kind, 0) + self._server.delete(path)
            if not wait or self._server.dry_run:
                continue
            if not self._server.wait(lambda path=path: self._server.get(path) is None):  # type: ignore[misc]
                self._report.leave(path.rsplit("/", 1)[1], _why(self._server.get(path)))
        for kind, count in counts.items():
            self._report.removed(kind, count)


def _is_part(found: Mapping[str, Any]) -> bool:
    key, _, value = names.PART_OF.partition("=")
    return (found["metadata"].get("labels") or {}).get(key) == value


def _why(found: Mapping[str, Any] | None) -> str:
    """Why an object has not ended, as far as it says so."""
    metadata = (found or {}).get("metadata", {})
    waiting = ", ".join(metadata.get("finalizers") or [])
    return f"is still being deleted{f', and waits for {waiting}' if waiting else ''}"
