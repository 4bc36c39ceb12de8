"""Tests marked `in_guest` run inside an emulated node, on real verbs, and are reported here.

They run as one pytest inside the guest, since starting Python there takes seconds. Each report
crosses as JSON, in pytest's own form, so a failure shows the guest's traceback as if it had
happened here.
"""

import json
import os
import pathlib
import shlex
from collections.abc import Sequence

import pytest

from tests.cluster import cache, disk, node

# Set inside the guest: there such a test just runs.
INSIDE = "FABRIC_READY_IN_GUEST"
_REPORTS = "/tmp/reports.jsonl"
# A guest runs Python some ten times slower than this machine.
_SECONDS_PER_TEST = 120


def is_inside() -> bool:
    """Whether this process runs in a guest."""
    return INSIDE in os.environ


class ReportWriter:
    """Inside: a plugin that keeps every report for the machine outside."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Appends one report, in the form in which pytest itself sends them between processes."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with pathlib.Path(os.environ[INSIDE]).open("a") as file:
            file.write(json.dumps(data) + "\n")


def run(
    guest: node.Node, config: pytest.Config, node_ids: Sequence[str]
) -> dict[str, list[pytest.TestReport]]:
    """Runs tests inside a guest.

    Returns:
        The reports (setup, call, teardown) of each test by its id. A test that gave no last report,
        because the guest's pytest crashed or took too long, has a failing one with what was said.
    """
    said = _run_pytest(guest, node_ids)
    lines = guest.run(f"cat {_REPORTS}", check=False).stdout.splitlines()
    found: dict[str, list[pytest.TestReport]] = {node_id: [] for node_id in node_ids}
    for line in lines:
        report = config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))
        found[report.nodeid].append(report)
    for node_id, reports in found.items():
        if not reports or reports[-1].when != "teardown":
            reports.append(_lost(node_id, said))
    return found


def _run_pytest(guest: node.Node, node_ids: Sequence[str]) -> str:
    """What pytest said inside the guest."""
    environment = {
        INSIDE: _REPORTS,
        "PYTHONPATH": f"{disk.PYTHON_FOLDER}:/src",
        "PYTHONDONTWRITEBYTECODE": "1",  # the checkout is read-only there
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    line = (
        f"rm -f {_REPORTS}; cat > /tmp/tests.txt; cd /src; {settings} python3 -m pytest"
        " -p no:cacheprovider -p no:hypothesispytest"
        f" -o timeout={_SECONDS_PER_TEST} @/tmp/tests.txt"
    )
    try:
        done = guest.run(
            line,
            stdin="".join(f"{node_id}\n" for node_id in node_ids),
            timeout=_SECONDS_PER_TEST * (1 + len(node_ids)),
            check=False,
        )
    except cache.RigError as error:
        return str(error)
    return (done.stdout + done.stderr)[-6000:]


def _lost(node_id: str, said: str) -> pytest.TestReport:
    file, name = node_id.split("::", 1)
    return pytest.TestReport(
        nodeid=node_id,
        location=(file, None, name),
        keywords={},
        outcome="failed",
        longrepr=f"gave no result inside the guest, where pytest said:\n{said}",
        when="call",
    )
