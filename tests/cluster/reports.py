"""Reports of tests that run in another pytest, in the form in which pytest itself sends them between processes."""

import json
import os
import pathlib

import pytest

# Set for that other pytest: the file that gets its reports, one JSON object a line.
VARIABLE = "FABRIC_READY_REPORTS"


class Writer:
    """In the other pytest: a plugin that keeps every report for the one that started it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Appends one report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with pathlib.Path(os.environ[VARIABLE]).open("a") as file:
            file.write(json.dumps(data) + "\n")


def are_wanted() -> bool:
    """Whether this pytest was started by another one."""
    return VARIABLE in os.environ


def read(config: pytest.Config, line: str) -> pytest.TestReport:
    """The report of a line."""
    found: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config, data=json.loads(line)
    )
    return found


def is_last(report: pytest.TestReport) -> bool:
    """Whether it is the last of its test's reports."""
    return report.when == "teardown"


def lost(node_id: str, where: str, said: str) -> pytest.TestReport:
    """The report of a test that gave no last one, with what its pytest said."""
    file, name = node_id.split("::", 1)
    return pytest.TestReport(
        nodeid=node_id,
        location=(file, None, name),
        keywords={},
        outcome="failed",
        longrepr=f"gave no result {where}, where pytest said:\n{said}",
        when="call",
    )
