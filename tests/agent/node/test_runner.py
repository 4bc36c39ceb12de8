"""Whatever a probe's process does, it costs one verdict on one probe. With real processes that misbehave."""

import select
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.node import clock, runner
from agent.node.ledger import Run
from probes.contract import Outcome, ProbeInfo, Request
from tests.agent.node.rungs import info

# Speaks the protocol; what it does with each request is the name of the probe.
_CHILD = """
import json, os, signal, sys, time

def answer(id, reason="Good", **more):
    verdict = {"outcome": "pass", "reason": reason, "message": "fine", **more}
    os.write(1, json.dumps({"id": id, "verdict": verdict}).encode() + b"\\n")

def misbehave(what, id):
    if what == "good": answer(id)
    elif what == "late": time.sleep(0.5); answer(id)
    elif what == "hang": time.sleep(3600)
    elif what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)
    elif what == "exit": sys.exit(7)
    elif what == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "garbage": os.write(1, b"\\xff\\x00 not json\\n"); time.sleep(3600)
    elif what == "wrongtype": os.write(1, b'{"id": 1, "verdict": {"outcome": "splendid"}}\\n'); time.sleep(3600)
    elif what == "flood":
        while True: os.write(1, b"x" * 65536)
    elif what == "lines":
        while True: os.write(1, b'{"id":0}\\n' * 5000)
    elif what == "noise":
        for _ in range(100): os.write(2, b"driver says no\\n" * 1000)
        answer(id)
    elif what == "parting": answer(id); os.write(2, b"a last word\\n" * 100); time.sleep(3600)
    elif what == "mute": os.close(2); time.sleep(1); answer(id)
    elif what == "closed": os.close(1); time.sleep(3600)
    elif what == "stale": answer(id - 1, "Old"); answer(id)
    elif what == "twice": answer(id); answer(id, "Again"); time.sleep(3600)
    elif what == "grandchild":
        if os.fork() == 0: time.sleep(3600)
        time.sleep(3600)
    elif what == "nested": os.write(1, b'{"id":1,"verdict":' + b"[" * 60000 + b"\\n"); time.sleep(3600)
    elif what == "control": answer(id, "bad reason!", part="a" * 5000)
    elif what == "pid": answer(id, part=str(os.getpid()))
    elif what == "changed": os.write(1, b'{"id":0,"changed":["rxe0/1"]}\\n'); answer(id)

if "mute" in sys.argv: time.sleep(3600)
os.write(1, b'{"id":0}\\n')
for line in sys.stdin:
    request = json.loads(line)
    misbehave(request["probe"].split(".")[1], request["id"])
"""


@pytest.fixture
def child(tmp_path: Path) -> tuple[str, ...]:
    """The command of a process that misbehaves on request."""
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(_CHILD))
    return (sys.executable, str(path))


@pytest.fixture
def one(child: tuple[str, ...]) -> Iterator[runner.Runner]:
    """A runner of such processes."""
    made = runner.Runner(child, clock.since_boot)
    yield made
    made.stop()


def probe(what: str, *, deadline: float = 5, moves_data: bool = False) -> ProbeInfo:
    """A probe that does this."""
    found = info(f"driver.{what}", moves_data=moves_data)
    return ProbeInfo(
        name=found.name,
        rung=found.rung,
        every=1,
        deadline=deadline,
        moves_data=moves_data,
        summary="",
    )


def start(made: runner.Runner, wanted: ProbeInfo) -> None:
    """Asks for a run."""
    made.start(wanted, Request(id=0, probe=wanted.name))


def wait(made: runner.Runner, until: Callable[[list[Run]], bool], seconds: float = 10) -> list[Run]:
    """Runs that ended until there are enough."""
    runs: list[Run] = []
    deadline = time.monotonic() + seconds
    while not until(runs):
        assert time.monotonic() < deadline, runs
        runs += made.wait(0.2)
    return runs


def run(made: runner.Runner, wanted: ProbeInfo) -> Run:
    """The one run of a probe."""
    start(made, wanted)
    (only,) = wait(made, lambda runs: len(runs) == 1)
    return only


@pytest.mark.parametrize("moves_data", [False, True])
@pytest.mark.parametrize(
    ("what", "reason", "words"),
    [
        ("hang", "ProbeTimedOut", "driver.hang did not answer within 0.5 s and was killed"),
        ("deaf", "ProbeTimedOut", "did not answer"),
        ("exit", "ProbeCrashed", "exit code 7"),
        ("segfault", "ProbeCrashed", "killed by SIGSEGV"),
        ("garbage", "ProbeGarbled", "which is no answer"),
        ("wrongtype", "ProbeGarbled", "which is no answer"),
        ("nested", "ProbeGarbled", "which is no answer"),
        ("flood", "ProbeFlooded", "without an answer"),
        ("lines", "ProbeFlooded", "without an answer"),
        ("closed", "ProbeCrashed", "closed its output"),
        ("grandchild", "ProbeTimedOut", "did not answer"),
    ],
)
def test_a_process_that_misbehaves_is_unknown_for_its_probe_alone(
    one: runner.Runner, what: str, reason: str, words: str, *, moves_data: bool
) -> None:
    """It is ended, the verdict says how, and the next probe runs."""
    deadline = 0.5 if reason == "ProbeTimedOut" else 5
    found = run(one, probe(what, deadline=deadline, moves_data=moves_data)).verdict
    assert (Outcome.UNKNOWN, reason) == (found.outcome, found.reason)
    assert words in found.message
    assert found.message.isprintable()
    assert Outcome.PASS is run(one, probe("good")).verdict.outcome
    assert [] == wait(one, lambda _: not one.running)


@pytest.mark.parametrize("moves_data", [False, True])
@pytest.mark.parametrize("what", ["good", "noise", "stale", "late", "parting", "mute"])
def test_a_process_that_answers_in_the_end_is_heard(
    one: runner.Runner, what: str, *, moves_data: bool
) -> None:
    """Noise on standard error before and after the answer, and answers to older questions, change nothing."""
    start(one, probe(what, moves_data=moves_data))
    one.wait(0)  # a passive one is asked now
    time.sleep(0.5)  # so that all it says is there when we look
    (found,) = wait(one, lambda runs: len(runs) == 1)
    assert (Outcome.PASS, "Good") == (found.verdict.outcome, found.verdict.reason)


def test_a_closed_standard_error_costs_no_time(one: runner.Runner) -> None:
    """Waiting for a process that closed it is waiting, not spinning."""
    start(one, probe("mute", moves_data=True))
    used = time.process_time()
    wait(one, lambda runs: len(runs) == 1)
    assert time.process_time() - used < 0.3


@pytest.mark.parametrize("moves_data", [False, True])
def test_a_process_that_cannot_be_started_is_unknown_for_its_probe(*, moves_data: bool) -> None:
    """No process, no program, no memory: said as such, each time anew, and the caller goes on."""
    made = runner.Runner(("/nonexistent/program",), clock.since_boot)
    for _ in range(2):
        found = run(made, probe("good", moves_data=moves_data)).verdict
        assert (Outcome.UNKNOWN, "ProbeNotStarted") == (found.outcome, found.reason)
        assert (
            "driver.good: no process can be started for it: No such file or directory"
            == found.message
        )
        assert frozenset() == made.running
    made.stop()


def test_a_request_that_does_not_fit_never_holds_us_up(one: runner.Runner) -> None:
    """A process that does not read its input costs its own probe's deadline."""
    wanted = probe("good", deadline=1, moves_data=True)
    one.start(wanted, Request(id=0, probe=wanted.name, inputs={"x": "y" * 1_000_000}))
    (found,) = wait(one, lambda runs: len(runs) == 1)
    assert "ProbeTimedOut" == found.verdict.reason


def test_a_process_that_never_starts_is_given_up(child: tuple[str, ...]) -> None:
    """Its start has a limit of its own, so that a slow machine is not taken for a slow driver."""
    made = runner.Runner((*child, "mute"), clock.since_boot, startup_seconds=0.5)
    for moves_data in (False, True):
        found = run(made, probe("good", deadline=0.1, moves_data=moves_data)).verdict
        assert (Outcome.UNKNOWN, "ProbeTimedOut") == (found.outcome, found.reason)
        assert "driver.good did not start within 0.5 s" in found.message
    made.stop()


def test_the_deadline_begins_when_the_process_is_ready(tmp_path: Path) -> None:
    """A start of half a second does not eat the tenth that the answer has."""
    path = tmp_path / "slow.py"
    path.write_text("import time; time.sleep(0.5)\n" + textwrap.dedent(_CHILD))
    made = runner.Runner((sys.executable, str(path)), clock.since_boot)
    assert Outcome.PASS is run(made, probe("good", deadline=0.1)).verdict.outcome
    assert Outcome.PASS is run(made, probe("good", deadline=0.3, moves_data=True)).verdict.outcome
    made.stop()


def test_a_second_answer_is_nobodys(one: runner.Runner) -> None:
    """Only the first answer to a question counts."""
    assert "Good" == run(one, probe("twice")).verdict.reason
    assert [] == one.wait(0.3)


def test_what_a_process_says_is_made_fit_to_be_shown(one: runner.Runner) -> None:
    """A reason that no condition may have is replaced, names are cut."""
    found = run(one, probe("control")).verdict
    assert "BadReason" == found.reason
    assert 256 == len(found.part)


def test_passive_probes_share_a_process_and_movers_do_not(one: runner.Runner) -> None:
    """One long-lived process for what only looks, a fresh one for each transfer."""
    passive = {run(one, probe("pid")).verdict.part for _ in range(3)}
    movers = {run(one, probe("pid", moves_data=True)).verdict.part for _ in range(3)}
    assert 1 == len(passive)
    assert 3 == len(movers)


def test_passive_probes_queue_and_a_mover_runs_beside_them(one: runner.Runner) -> None:
    """All are running from the caller's view, and all answer."""
    for what in ("late", "good", "pid"):
        start(one, probe(what))
    start(one, probe("late", moves_data=True))
    assert {"driver.late", "driver.good", "driver.pid"} == one.running
    assert 4 == len(wait(one, lambda runs: len(runs) == 4))
    assert [] == wait(one, lambda _: not one.running)


def test_changed_ports_are_passed_on(one: runner.Runner) -> None:
    """What the watching process noticed waits for the caller."""
    run(one, probe("changed"))
    assert {"rxe0/1"} == one.changed


def test_an_idle_process_that_goes_silent_is_replaced(one: runner.Runner) -> None:
    """It says each second that it lives; fifteen seconds of silence end it, and probes run on."""
    first = run(one, probe("pid")).verdict.part
    assert one._passive is not None
    one._passive.heard_at -= runner.SILENCE_SECONDS
    wait(one, lambda _: one.restarts == 1)
    assert first != run(one, probe("pid")).verdict.part


def test_everything_is_gone_after_stop(child: tuple[str, ...]) -> None:
    """No process of ours outlives the runner, grandchildren included."""
    made = runner.Runner(child, clock.since_boot)
    start(made, probe("grandchild", moves_data=True))
    start(made, probe("good"))
    wait(made, lambda runs: len(runs) == 1)
    groups = [found.pid for found in made._children()]
    assert 2 == len(groups)
    made.stop()
    deadline = time.monotonic() + 5
    while alive := [group for group in groups if _members(group)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _members(group: int) -> list[int]:
    """Processes of a group that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_asked(made: runner.Runner) -> bool:
    """Whether the passive process is ready and was asked something."""
    child = made._passive
    return child is not None and child.ready_at is not None and child.probe is not None


@pytest.mark.in_guest
def test_a_process_that_does_not_die_keeps_only_its_own_probe_back(tmp_path: Path) -> None:
    """SIGKILL does not end what the kernel holds (a frozen cgroup here): ProbeStuck, until it is gone."""
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(_CHILD))
    made = runner.Runner((sys.executable, str(path)), clock.since_boot)
    with frozen_cgroup() as freezer:
        start(made, probe("hang", deadline=6))
        # Ready and asked: what is frozen while it starts is waited for much longer.
        wait(made, lambda _: is_asked(made))
        assert made._passive is not None
        freezer.hold(made._passive.pid)
        first, second = wait(made, lambda runs: len(runs) == 2, seconds=30)
        assert ["ProbeTimedOut", "ProbeStuck"] == [first.verdict.reason, second.verdict.reason]
        assert {"driver.hang"} == made.running
        assert Outcome.PASS is run(made, probe("good", deadline=20)).verdict.outcome
    wait(made, lambda _: not made.running)
    made.stop()


@pytest.mark.in_guest
def test_a_process_that_answers_and_does_not_die_is_stuck_as_well(tmp_path: Path) -> None:
    """Its answer counts; then it is ProbeStuck, and past a number of such processes none is started."""
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(_CHILD))
    made = runner.Runner((sys.executable, str(path)), clock.since_boot, most_dying=1)
    wanted = probe("parting", deadline=20, moves_data=True)
    with frozen_cgroup() as freezer:
        start(made, wanted)
        (asked,) = made._movers
        # Its last word comes after the answer, which nobody has read yet.
        while not select.select([asked.errors], [], [], 0)[0]:
            time.sleep(0.05)
        freezer.hold(asked.pid)
        first, second = wait(made, lambda runs: len(runs) == 2, seconds=30)
        assert ["Good", "ProbeStuck"] == [first.verdict.reason, second.verdict.reason]
        assert {"driver.parting"} == made.running
        found = run(made, probe("good", moves_data=True)).verdict
        assert "ProbeNotStarted" == found.reason
        assert "1 earlier ones do not die" in found.message
    wait(made, lambda _: not made.running)
    assert "Good" == run(made, probe("good", deadline=20, moves_data=True)).verdict.reason
    made.stop()


class Freezer:
    """A cgroup (version 1) whose processes stop where they are; signals wait, SIGKILL too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, pid: int) -> None:
        """Freezes a process."""
        (self._folder / "cgroup.procs").write_text(str(pid))
        (self._folder / "freezer.state").write_text("FROZEN")

    def release(self) -> None:
        """Thaws it."""
        (self._folder / "freezer.state").write_text("THAWED")


class frozen_cgroup:  # noqa: N801  (used as a function)
    """Mounts the freezer and takes it away again."""

    def __enter__(self) -> Freezer:
        import subprocess  # noqa: PLC0415

        self._mount = Path("/tmp/freezer")
        self._mount.mkdir(exist_ok=True)
        mount = ["mount", "-t", "cgroup", "-o", "freezer", "freezer", str(self._mount)]
        subprocess.run(mount, check=True)
        self._folder = self._mount / "held"
        self._folder.mkdir()
        self._freezer = Freezer(self._folder)
        return self._freezer

    def __exit__(self, *_: object) -> None:
        import subprocess  # noqa: PLC0415

        self._freezer.release()
        deadline = time.monotonic() + 10
        while (self._folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._folder.rmdir()
        subprocess.run(["umount", str(self._mount)], check=True)
