"""The contract's types hold `read` and `judge` together."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROBE = """
import dataclasses

from probes import contract


@dataclasses.dataclass(frozen=True)
class Facts:
    ports: int


@dataclasses.dataclass(frozen=True)
class OtherFacts:
    ports: int


class Limits(contract.Limits, frozen=True):
    ports: int = 1


class OtherLimits(contract.Limits, frozen=True):
    ports: int = 1


def read(host: contract.Host) -> {read}:
    return {read}(ports=1)


def judge(facts: {facts}, limits: {limits}) -> {verdict}:
    return {answer}


PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=60, deadline=5)
"""
_FITTING = {
    "read": "Facts",
    "facts": "Facts",
    "limits": "Limits",
    "verdict": "contract.Verdict",
    "answer": "contract.Verdict(outcome=contract.Outcome.PASS, reason='Good', message='good')",
}


def _mypy(folder: Path, **changes: str) -> str:
    """What mypy says of that probe; it keeps its cache in the project's, as `make check` does."""
    file = folder / "made.py"
    file.write_text(_PROBE.format(**{**_FITTING, **changes}))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=100
    ).stdout.strip()


@pytest.mark.timeout(120)
def test_a_probe_that_fits_together_type_checks(tmp_path: Path) -> None:
    """The example is right, so that what the others are refused for is the one thing they change."""
    assert "" == _mypy(tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "changes",
    [
        {"facts": "OtherFacts"},
        {"read": "OtherFacts"},
        {"limits": "OtherLimits"},
        {"verdict": "bool", "answer": "True"},
    ],
    ids=str,
)
def test_a_probe_that_does_not_fit_together_is_refused(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    """A judge for other facts or limits than its probe has would only fail on a node."""
    said = _mypy(tmp_path, **changes)
    assert 1 == said.count(": error: "), said
    assert '"Probe"' in said
