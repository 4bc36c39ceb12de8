"""Sees a node's condition change on the API server the moment it does."""

import queue
import subprocess
import threading
import time
from types import TracebackType
from typing import Self

from tests.cluster import cache, controlplane

_CONDITION = '{.status.conditions[?(@.type=="FabricReady")].status}{"\\n"}'


class NodeWatch:
    """A watch on one node, running since before the thing that it should see.

    `wait_for` counts from its call.
    """

    def __init__(self, api: controlplane.ApiServer, node: str) -> None:
        self._node = node
        self._seen: queue.Queue[tuple[float, str]] = queue.Queue()
        command = [
            str(api.programs / "kubectl"), "--kubeconfig", str(api.admin_kubeconfig),
            "get", "node", node, "--watch", "--output", f"jsonpath={_CONDITION}",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()

    def _read(self) -> None:
        if self._process.stdout:
            for line in self._process.stdout:
                self._seen.put((time.monotonic(), line.strip()))

    def wait_for(self, status: str, *, seconds: float, since: float | None = None) -> float:
        """Seconds from `since` (`time.monotonic()`; the call when not given) until the condition
        had this status.

        Raises:
            RigError: it had not, in that time.
        """
        started = time.monotonic() if since is None else since
        last = "nothing"
        while (left := started + seconds - time.monotonic()) > 0:
            try:
                when, last = self._seen.get(timeout=left)
            except queue.Empty:
                break
            if last == status:
                return max(0.0, when - started)
        raise cache.RigError(
            f"{self._node}: FabricReady was {last} after {seconds:g} s, not {status}"
        )
