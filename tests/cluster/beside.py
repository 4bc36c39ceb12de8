"""Tests of the API server in a pytest of their own, while the cluster's run in this one.

They mostly wait for the server, and those of the cluster mostly for the guests.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import pytest

from tests.cluster import reports

_LAST_SECONDS = 20
_TAIL_CHARS = 6000


class Beside:
    """A pytest that runs some of this one's tests."""

    def __init__(self, config: pytest.Config, node_ids: Sequence[str]) -> None:
        self._config = config
        self._folder = tempfile.TemporaryDirectory(prefix="fabric-beside-")
        folder = pathlib.Path(self._folder.name)
        self._log, wanted, self._path = (folder / name for name in ("log", "tests", "reports"))
        wanted.write_text("".join(f"{node_id}\n" for node_id in node_ids))
        self._path.touch()
        self._file = self._path.open()
        self._rest = ""
        self._found: dict[str, list[pytest.TestReport]] = {}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"@{wanted}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=config.rootpath,
                env={**os.environ, reports.VARIABLE: str(self._path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def reports(self, node_id: str) -> list[pytest.TestReport]:
        """The reports of a test, as soon as it has ended."""
        while True:
            ended = self._process.poll() is not None
            self._read()
            found = self._found.get(node_id, [])
            if found and reports.is_last(found[-1]):
                return found
            if ended:
                said = self._log.read_text(errors="replace")[-_TAIL_CHARS:]
                return [*found, reports.lost(node_id, "beside the others", said)]
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends what still runs."""
        self._process.terminate()
        try:
            self._process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._file.close()
        self._folder.cleanup()

    def _read(self) -> None:
        *whole, self._rest = (self._rest + self._file.read()).split("\n")
        for line in whole:
            report = reports.read(self._config, line)
            self._found.setdefault(report.nodeid, []).append(report)
