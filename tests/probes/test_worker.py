"""A worker answers over its pipes whatever a probe does, and says which ports changed."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Runs the real entry point with one more folder of probes, as if its files lay in the package.
_ENTRY = """
import sys
import probes
probes.__path__.append(sys.argv.pop(1))
from probes.__main__ import main
sys.exit(main())
"""

_PROBE = """
'''Summary of {name}.'''
import dataclasses, os, sys
from probes import contract

@dataclasses.dataclass(frozen=True)
class Facts:
    text: str

class Limits(contract.Limits):
    level: int = 3
    mode: str = "plain"

def read(host):
    {read}

def judge(facts, limits):
    {judge}

PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=60, deadline=5)
"""
_PASS = "return contract.Verdict(outcome=contract.Outcome.PASS, reason='Good', message=f'{facts.text} {limits.level}')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one more rung, `made`, and its probes."""
    rung = tmp_path / "made"
    rung.mkdir()
    (rung / "__init__.py").touch()
    bodies = {
        "good": ("return Facts(text='level')", _PASS),
        "noisy": (
            "os.write(1, b'firmware says hello\\n'); print('more'); return Facts(text='')",
            _PASS,
        ),
        "blind": ("raise contract.Unreadable('/sys/x', 'Invalid argument')", _PASS),
        "bug": ("return Facts(text='')", "return {}['nothing']"),
        "wrong": ("sys.exit(3)", _PASS),
    }
    for name, (read, judge) in bodies.items():
        text = textwrap.dedent(_PROBE).format(name=name, read=read, judge=judge)
        (rung / f"{name}.py").write_text(text)
    (rung / "broken.py").write_text("import a_library_that_is_not_here\n")
    return tmp_path


class Worker:
    """A running worker and its two pipes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ENTRY, str(folder), "--serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, probe: str, **more: object) -> dict[str, Any]:
        """The answer to one request, however many signs of life come before it."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"id": 7, "probe": probe, **more}).encode() + b"\n")
        self.process.stdin.flush()
        return next(answer for answer in self.lines() if answer["id"] == 7)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Everything that it says, parsed."""
        assert self.process.stdout
        for line in self.process.stdout:
            yield json.loads(line)


@pytest.fixture
def worker(folder: Path) -> Iterator[Worker]:
    """A worker that serves the made-up rung."""
    one = Worker(folder)
    yield one
    one.process.communicate(timeout=10)
    assert one.process.returncode == 0


@pytest.mark.parametrize(
    ("probe", "outcome", "reason", "message"),
    [
        ("made.good", "pass", "Good", "level 3"),
        (
            "made.blind",
            "unknown",
            "Unreadable",
            "made.blind could not read /sys/x: Invalid argument",
        ),
        ("made.bug", "unknown", "ProbeCrashed", "made.bug: KeyError: 'nothing'"),
        ("made.broken", "unknown", "ProbeCrashed", "a_library_that_is_not_here"),
        ("made.none", "unknown", "NoSuchProbe", "no probe is called 'made.none'"),
    ],
)
def test_every_end_of_a_probe_is_an_answer(
    worker: Worker, probe: str, outcome: str, reason: str, message: str
) -> None:
    """What a probe finds, can't read, or trips over comes back as a verdict on it, and the worker lives on."""
    verdict = worker.ask(probe)["verdict"]
    assert (outcome, reason) == (verdict["outcome"], verdict["reason"])
    assert message in verdict["message"]
    assert worker.ask("made.good")["verdict"]["outcome"] == "pass"


def test_what_libraries_print_never_reaches_the_protocol(worker: Worker) -> None:
    """A driver that prints on standard output disturbs no answer."""
    assert worker.ask("made.noisy")["verdict"]["reason"] == "Good"


def test_limits_of_a_request_are_used_and_checked(worker: Worker) -> None:
    """A limit changes the judgement; an unknown one or a wrong type is refused by name."""
    assert worker.ask("made.good", limits={"level": 9})["verdict"]["message"] == "level 9"
    wrong = worker.ask("made.good", limits={"levle": 9})["verdict"]
    assert ("unknown", "BadLimits") == (wrong["outcome"], wrong["reason"])
    assert "levle: not a limit of made.good; allowed: level, mode" in wrong["message"]
    wrong = worker.ask("made.good", limits={"level": "high"})["verdict"]
    assert "Expected `int`, got `str`" in wrong["message"]


def test_a_request_that_is_no_json_is_answered_and_survived(worker: Worker) -> None:
    """Garbage from the caller gets an answer, and the next request is served."""
    assert worker.process.stdin
    worker.process.stdin.write(b"{nonsense\n")
    worker.process.stdin.flush()
    lines = worker.lines()
    assert next(lines)["verdict"] is None  # it said that it is ready
    assert next(lines)["verdict"]["reason"] == "BadRequest"
    assert worker.ask("made.good")["verdict"]["outcome"] == "pass"


def test_a_watching_worker_says_that_it_lives(folder: Path) -> None:
    """With --watch an idle worker writes a line with id 0 each second, and ends with its input."""
    worker = Worker(folder, "--watch")
    lines = worker.lines()
    assert [0, 0, 0] == [next(lines)["id"] for _ in range(3)]
    worker.process.communicate(timeout=10)
    assert worker.process.returncode == 0


def test_the_catalogue_lists_the_broken_with_the_cause(folder: Path) -> None:
    """A probe that can't be imported is named with the cause and takes no other with it."""
    said = subprocess.run(
        [sys.executable, "-c", _ENTRY, str(folder), "--catalogue"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    ).stdout
    found = json.loads(said)
    good = next(probe for probe in found["probes"] if probe["name"] == "made.good")
    assert ("made", 60, "Summary of good.") == (good["rung"], good["every"], good["summary"])
    assert found["defaults"]["made.good"] == {"level": 3, "mode": "plain"}
    assert "a_library_that_is_not_here" in found["broken"]["made.broken"]


def test_wrong_limits_are_named_before_anything_runs(folder: Path) -> None:
    """--catalogue says, for the limits on its standard input, where each wrong one stands."""
    command = [sys.executable, "-c", _ENTRY, str(folder), "--catalogue"]
    given = {
        "profile.limits": {"made.good": {"level": "x"}, "made.noisy": {"level": 1}},
        "limits": {"made.good": {"level": 1}, "made.nope": {"a": 1}, "made.broken": {"a": 1}},
    }
    said = subprocess.run(
        command, input=json.dumps(given).encode(), capture_output=True, check=True
    )
    problems = json.loads(said.stdout)["problems"]
    assert [
        ["profile", "limits", "made.good", "level"],
        ["limits", "made.nope"],
        ["limits", "made.broken"],
    ] == [problem["where"] for problem in problems]
    assert all(problem["text"] for problem in problems)
    said = subprocess.run(command, input=b"no limits", capture_output=True, check=False)
    assert (64, b"") == (said.returncode, said.stdout)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["made.good"], 0),
        (["made.bug"], 2),
        (["made.nope"], 64),
        (["made.good", "--limits", "{"], 64),
    ],
)
def test_one_probe_by_hand(folder: Path, arguments: list[str], code: int) -> None:
    """A person runs one probe; the exit code is 0 passed, 1 failed, 2 unknown, 64 usage."""
    command = [sys.executable, "-c", _ENTRY, str(folder), *arguments]
    assert code == subprocess.run(command, capture_output=True, check=False).returncode
