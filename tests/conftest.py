"""Fixtures of the real thing: `apiserver`, `cluster` and `guest`, started when the first test asks.

Tests that need none of them run first. What the others need from the outside world is made before
the first test; then this process moves into a network namespace of its own
(`tests/cluster/network.py`) and stays there. The tests of the API server mostly wait: a pytest of
their own runs them (`tests/cluster/beside.py`) while the cluster boots, the tests inside its guests
run (`tests/cluster/ahead.py`), and then those of the cluster. Their results come last.
"""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import guest_tests, reports

if not guest_tests.is_inside():  # a guest needs none of it, and importing it there takes seconds
    from tests.cluster import ahead, beside, controlplane, network, node, prepare
    from tests.cluster import cluster as clusters

# Beyond starting what it needs, which happens in the fixture and is not counted.
_CLUSTER_TEST_SECONDS = 180
_CRD = Path(__file__).parents[1] / "manifests/base/fabricnodes.yaml"

_images = pytest.StashKey[Path]()
_in_guest = pytest.StashKey[list[str]]()
_ahead = pytest.StashKey["ahead.Ahead"]()
_apart = pytest.StashKey[list[str]]()
_beside = pytest.StashKey["beside.Beside"]()


@pytest.fixture(scope="session")
def apiserver() -> Iterator["controlplane.ApiServer"]:
    """A real API server with etcd, and FabricNodes; nothing else. Shared: use names of your own."""
    with tempfile.TemporaryDirectory(prefix="fabric-rig-") as folder:
        api = controlplane.ApiServer.start(Path(folder) / "control-plane")
        api.kubectl("apply", "--server-side", "--filename", str(_CRD))
        api.kubectl("wait", "--for=condition=Established", "--timeout=30s", "--filename", str(_CRD))
        yield api
        api.stop()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> "clusters.Cluster":
    """A cluster of two emulated nodes, shared: leave it as you found it."""
    return _started_cluster(request.config)


@pytest.fixture(scope="session")
def guest(cluster: "clusters.Cluster") -> "node.Node":
    """A machine with working verbs: the cluster's first node."""
    return cluster.nodes["node-a"]


def _started_cluster(config: pytest.Config) -> "clusters.Cluster":
    return _work(config).cluster()


def _work(config: pytest.Config) -> "ahead.Ahead":
    """What runs beside the tests, started by the first one that needs more than this process."""
    if _ahead not in config.stash:
        inside: list[str] = config.stash[_in_guest]
        config.stash[_ahead] = ahead.Ahead(config, config.stash[_images], inside)
        if apart := config.stash[_apart]:
            config.stash[_beside] = beside.Beside(config, apart)
    return config.stash[_ahead]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Ends the cluster, if one was started; its logs stay after a failure."""
    if _beside in session.config.stash:
        session.config.stash[_beside].stop()
    if _ahead in session.config.stash:
        session.config.stash[_ahead].stop(keep_logs=exitstatus != pytest.ExitCode.OK)


@pytest.hookimpl(tryfirst=True)  # before -m chooses by these markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by what they use, and puts the fast ones first."""
    if guest_tests.is_inside():
        return
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "cluster" in fixtures or item.get_closest_marker("in_guest"):
            item.add_marker(pytest.mark.cluster)
        elif "apiserver" in fixtures:
            item.add_marker(pytest.mark.apiserver)
        slow = _order(item) > 0
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_CLUSTER_TEST_SECONDS, func_only=True))
    items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    ranks = {"in_guest": 1, "cluster": 2, "apiserver": 3}
    return min((rank for name, rank in ranks.items() if item.get_closest_marker(name)), default=0)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes what the chosen tests need, with its progress visible, and enters the rig's network."""
    if guest_tests.is_inside() or session.config.option.collectonly:
        return
    markers = {mark.name for item in session.items for mark in item.iter_markers()}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if "cluster" in markers:
            print()
            session.config.stash[_images] = prepare.everything()
            for key, marker in ((_in_guest, "in_guest"), (_apart, "apiserver")):
                session.config.stash[key] = [
                    item.nodeid for item in session.items if item.get_closest_marker(marker)
                ]
            network.enter()
        elif "apiserver" in markers:
            prepare.control_plane()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Starts what runs beside, and reports a test that ran inside a guest or in the other pytest."""
    config = item.config
    if guest_tests.is_inside():
        return None
    if _images in config.stash and _order(item) > 0:
        _work(config)
    if item.get_closest_marker("in_guest"):
        found = _work(config).reports()[item.nodeid]
    elif _beside in config.stash and item.get_closest_marker("apiserver"):
        found = config.stash[_beside].reports(item.nodeid)
    else:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in found:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the nodes said last to the report of a failed cluster test."""
    report = yield
    if report.failed and _ahead in item.config.stash:
        report.sections.append(("nodes", item.config.stash[_ahead].evidence()))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """In a pytest that another one started: hands each report to that one."""
    if reports.are_wanted():
        config.pluginmanager.register(reports.Writer(config))
