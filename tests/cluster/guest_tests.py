"""Tests marked `in_guest` run inside an emulated node, on real verbs, and are reported here.

They run as one pytest inside the guest, since starting Python there takes seconds. Each report
crosses as JSON, in pytest's own form, so a failure shows the guest's traceback as if it had
happened here.
"""

import os
import shlex
from collections.abc import Sequence

import pytest

from tests.cluster import cache, disk, node, reports

# Set inside the guest: there such a test just runs.
INSIDE = "FABRIC_READY_IN_GUEST"
_REPORTS = "/tmp/reports.jsonl"
# A guest runs Python some ten times slower than this machine.
_SECONDS_PER_TEST = 120


def is_inside() -> bool:
    """Whether this process runs in a guest."""
    return INSIDE in os.environ


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
        report = reports.read(config, line)
        found[report.nodeid].append(report)
    for node_id, given in found.items():
        if not given or not reports.is_last(given[-1]):
            given.append(reports.lost(node_id, "inside the guest", said))
    return found


def _run_pytest(guest: node.Node, node_ids: Sequence[str]) -> str:
    """What pytest said inside the guest."""
    environment = {
        INSIDE: "1",
        reports.VARIABLE: _REPORTS,
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
