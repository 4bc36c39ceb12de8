"""A whole cluster, control plane and emulated nodes, for tests and for the demo alike."""

import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from tests.cluster import cache, controlplane, disk, network, node, processes, waiting

# Two nodes are Ready 40 s after power-on on two idle cores.
_READY_SECONDS = 240


@dataclasses.dataclass(slots=True, kw_only=True)
class Cluster:
    """A running cluster; `nodes` by name (`node-a`, `node-b`, …)."""

    folder: pathlib.Path
    plane: controlplane.ControlPlane
    nodes: dict[str, node.Node]
    images: pathlib.Path | None
    survives: bool
    ready_seconds: float = 0
    """From the call of `start` to all nodes Ready."""

    @classmethod
    def start(
        cls,
        nodes: int = 2,
        *,
        folder: pathlib.Path | None = None,
        images: pathlib.Path | None = None,
        extra_setup: str = "",
        survives: bool = False,
    ) -> "Cluster":
        """Starts a cluster and returns when every node is Ready.

        Args:
            nodes: how many; a node takes 1 GB of memory and slows the others.
            folder: for everything about the run; a temporary one when not given.
            images: the disk with container images, from `image.disk`.
            extra_setup: shell lines for every node's init.
            survives: whether everything outlives this process (see `state`).

        Raises:
            RigError: something did not start; the text ends with the evidence.
        """
        started = time.monotonic()
        network.enter()
        folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="fabric-rig-"))
        folder.mkdir(parents=True, exist_ok=True)
        disk.disk().get()
        plane = controlplane.ControlPlane.start(folder / "control-plane", survives=survives)
        cluster = cls(folder=folder, plane=plane, nodes={}, images=images, survives=survives)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(cluster.stop)
            for number in range(1, nodes + 1):
                cluster.add_node(number, extra_setup=extra_setup)
            cluster.wait_ready()
            on_failure.pop_all()
        cluster.ready_seconds = time.monotonic() - started
        return cluster

    @property
    def api(self) -> controlplane.ApiServer:
        """The API server: kubectl, tokens, outages."""
        return self.plane.api

    def add_node(self, number: int, *, extra_setup: str = "") -> node.Node:
        """Switches on one more node and returns at once."""
        added = node.Node.start(
            number,
            self.folder / node.node_name(number),
            api=self.api,
            images=self.images,
            extra_setup=extra_setup,
            survives=self.survives,
        )
        self.nodes[added.name] = added
        return added

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """What kubectl prints, as admin."""
        return self.api.kubectl(*arguments, stdin=stdin, timeout=timeout)

    def apply(self, manifest: str) -> str:
        """Applies a manifest, on the server's side."""
        return self.api.apply(manifest)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get … -o json` gives."""
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def wait_until(self, what: str, check: Any, *, seconds: float = 60) -> Any:
        """The first true value of `check`; a failure tells what the nodes said last."""
        return waiting.until(what, check, seconds=seconds, detail=self.evidence)

    def wait_ready(self, names: Sequence[str] = ()) -> None:
        """Returns when the nodes (all, or those named) are booted and their kubelets Ready.

        Raises:
            RigError: one is not in time; consoles and kubelet logs end the text.
        """
        waited = [self.nodes[name] for name in names or self.nodes]
        with concurrent.futures.ThreadPoolExecutor(len(waited)) as pool:
            list(pool.map(node.Node.wait_booted, waited))
        self.wait_until(
            f"{', '.join(one.name for one in waited)} to be Ready",
            lambda: all(self._is_ready(one) for one in waited),
            seconds=_READY_SECONDS,
        )

    def condition(self, name: str, kind: str = "Ready") -> dict[str, str]:
        """A condition of a node as the API server has it, empty where there is none."""
        conditions = self.get("node", name)["status"].get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), {})

    def _is_ready(self, one: node.Node) -> bool:
        # After a reboot the API server says Ready of the old boot until the kubelet is back.
        status = self.get("node", one.name)["status"]
        ready = self.condition(one.name).get("status") == "True"
        return ready and status["nodeInfo"]["bootID"] == one.boot_id()

    def evidence(self) -> str:
        """What the nodes said last."""
        return "\n".join(one.evidence() for one in self.nodes.values())

    @property
    def running(self) -> list[processes.Program]:
        """All its programs."""
        return [*(one.power for one in self.nodes.values()), *self.plane.running]

    def stop(self, *, keep_logs: bool = True) -> None:
        """Ends everything; the network goes with the process."""
        for one in self.nodes.values():
            one.remove()
        self.plane.stop()
        if keep_logs:
            cache.say(f"the cluster's logs are in {self.folder}")
        else:
            shutil.rmtree(self.folder)
