"""The shared cluster boots, and the tests inside its guests run, half in each, in a thread of their own.

The thread lives as long as the run: the cluster's programs end with the thread that started them.
"""

import concurrent.futures
import pathlib
import threading
from collections.abc import Sequence

import pytest

from tests.cluster import cluster as clusters
from tests.cluster import guest_tests

_Reports = dict[str, list[pytest.TestReport]]


class Ahead:
    """A cluster and the reports of its guests, as soon as they are there."""

    def __init__(
        self, config: pytest.Config, images: pathlib.Path, node_ids: Sequence[str]
    ) -> None:
        self._config = config
        self._images = images
        self._node_ids = node_ids
        self._cluster = concurrent.futures.Future[clusters.Cluster]()
        self._reports = concurrent.futures.Future[_Reports]()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def cluster(self) -> clusters.Cluster:
        """The cluster, with no test inside its guests any more.

        Raises:
            RigError: it did not start.
        """
        self._reports.exception()
        return self._cluster.result()

    def reports(self) -> _Reports:
        """What the tests inside the guests gave, by their ids.

        Raises:
            RigError: the cluster did not start.
        """
        return self._reports.result()

    def evidence(self) -> str:
        """What the nodes said last; nothing while there are none."""
        started = self._cluster.done() and not self._cluster.exception()
        return self._cluster.result().evidence() if started else ""

    def stop(self, *, keep_logs: bool) -> None:
        """Ends the cluster; one that is still starting ends with this process."""
        if self._cluster.done() and not self._cluster.exception():
            self._cluster.result().stop(keep_logs=keep_logs)
        self._over.set()

    def _run(self) -> None:
        try:
            running = clusters.Cluster.start(nodes=2, images=self._images)
            self._cluster.set_result(running)
            self._reports.set_result(self._inside(running))
        except BaseException as error:  # noqa: BLE001  (whoever waits for it gets it)
            for future in (self._cluster, self._reports):
                if not future.done():
                    future.set_exception(error)
        self._over.wait()

    def _inside(self, running: clusters.Cluster) -> _Reports:
        """Runs the tests of each file in one of the guests, as many files in each."""
        files = sorted({node_id.split("::")[0] for node_id in self._node_ids})
        nodes = list(running.nodes.values())
        shares = [
            [
                one
                for one in self._node_ids
                if files.index(one.split("::")[0]) % len(nodes) == number
            ]
            for number in range(len(nodes))
        ]
        found: _Reports = {}
        with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
            jobs = [
                pool.submit(guest_tests.run, node, self._config, share)
                for node, share in zip(nodes, shares, strict=True)
                if share
            ]
            for job in jobs:
                found |= job.result()
        return found
