"""`fabric-ready check`: every local rung once, on the machine that this runs on, for a person or a program."""

import dataclasses
import sys
from typing import Any

import msgspec

from agent.node import clock, ladder, probing
from agent.node.ladder import Ladder
from agent.node.ledger import Run
from agent.node.runner import Runner
from agent.settings import Settings
from probes.contract import Outcome, Verdict

_EXIT_UNKNOWN = 2
_COLORS = {
    Outcome.PASS: "green",
    Outcome.FAIL: "red",
    Outcome.UNKNOWN: "yellow",
    Outcome.SKIP: "dim",
}
_PEERS = (
    "Peers were not asked: this says nothing about cables, switches and the way to other nodes."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The worst that was found in the rungs that gate, in words, and the exit code for it."""

    outcome: str
    exit_code: int
    words: str


def run(settings: Settings, *, as_json: bool) -> int:
    """Runs all probes, prints what they found, and gives the exit code.

    Raises:
        SettingsError: the settings ask for what does not exist.
    """
    try:
        catalogue = probing.catalogue(settings)
        rungs = ladder.build(catalogue, settings)
    except probing.ProbesUnusable as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return _EXIT_UNKNOWN
    runs = _climb(settings, rungs)
    summary = summarize(runs, rungs)
    if as_json:
        _print_json(runs, rungs, summary)
    else:
        _print_table(runs, rungs, summary)
    return summary.exit_code


def _climb(settings: Settings, rungs: Ladder) -> list[Run]:
    """One run of every probe, one after another, each in a process that may die."""
    runner = Runner(probing.serving(settings), clock.since_boot)
    runs = [_broken(name, why) for name, why in rungs.broken]
    try:
        for probe in rungs.probes:
            runner.start(probe, probing.request(settings, probe.name))
            found: list[Run] = []
            while not found:
                found = [run for run in runner.wait(1.0) if run.probe == probe.name]
            runs += found
    finally:
        runner.stop()
    return runs


def _broken(name: str, why: str) -> Run:
    verdict = Verdict(
        outcome=Outcome.UNKNOWN, reason="ProbeBroken", message=f"{name} can't be loaded: {why}"
    )
    return Run(probe=name, verdict=verdict, started=0.0, ended=0.0)


def summarize(runs: list[Run], rungs: Ladder) -> Summary:
    """The worst outcome of the gating probes. Nothing but skips is Unknown: it proves nothing."""
    outcomes = {run.verdict.outcome for run in runs if run.probe in rungs.gating}
    if Outcome.FAIL in outcomes:
        return Summary(outcome="fail", exit_code=1, words="NOT READY: at least one rung failed.")
    if Outcome.UNKNOWN in outcomes or Outcome.PASS not in outcomes:
        words = "UNKNOWN: at least one rung could not be decided."
        return Summary(outcome="unknown", exit_code=_EXIT_UNKNOWN, words=words)
    movers = [one.name for one in rungs.probes if one.moves_data and one.name in rungs.gating]
    moved = [run for run in runs if run.probe in movers and run.verdict.outcome is Outcome.PASS]
    if movers and not moved:
        words = "UNKNOWN: no bytes were moved, so nothing is proven."
        return Summary(outcome="unknown", exit_code=_EXIT_UNKNOWN, words=words)
    words = "Every local rung passed."
    if not movers:
        words = "Every rung in the settings passed. None of them moves bytes: RDMA is not proven."
    return Summary(outcome="pass", exit_code=0, words=words)


def _print_json(runs: list[Run], rungs: Ladder, summary: Summary) -> None:
    body: dict[str, Any] = {
        "outcome": summary.outcome,
        "exit_code": summary.exit_code,
        "summary": summary.words,
        "peers_asked": False,
        "rungs": rungs.rungs,
        "probes": [
            {
                "probe": run.probe,
                "rung": ladder.rung(run.probe),
                "gates": run.probe in rungs.gating,
                "seconds": round(run.ended - run.started, 3),
                "verdict": run.verdict,
            }
            for run in runs
        ],
    }
    print(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())


def _print_table(runs: list[Run], rungs: Ladder, summary: Summary) -> None:
    import rich.console  # noqa: PLC0415  (17 MiB that the daemon never needs)
    import rich.table  # noqa: PLC0415
    import rich.text  # noqa: PLC0415

    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    table = rich.table.Table()
    for column in ("rung", "probe", "outcome"):
        table.add_column(column, no_wrap=True)
    table.add_column("evidence", overflow="fold")
    table.add_column("expectation", overflow="fold")
    for run in runs:
        for verdict, first in _rows(run.verdict):
            names = (ladder.rung(run.probe), run.probe.split(".", 1)[1]) if first else ("", "")
            outcome = rich.text.Text(_outcome(verdict), style=_COLORS[verdict.outcome])
            evidence = rich.text.Text(_evidence(verdict))
            table.add_row(*names, outcome, evidence, rich.text.Text(_expectation(verdict)))
    console.print(table)
    console.print(rich.text.Text(summary.words, style=_COLORS[Outcome(summary.outcome)]))
    if "peer" not in rungs.rungs:
        console.print(_PEERS)


def _rows(verdict: Verdict) -> list[tuple[Verdict, bool]]:
    """A line for each part, or one for the whole where it has none."""
    parts = verdict.parts or (verdict,)
    return [(part, index == 0) for index, part in enumerate(parts)]


def _outcome(verdict: Verdict) -> str:
    return (
        f"{verdict.outcome.value}, {verdict.warning}" if verdict.warning else verdict.outcome.value
    )


def _evidence(verdict: Verdict) -> str:
    witness = verdict.notes.get("witness")
    text = (
        verdict.message
        if verdict.outcome is Outcome.PASS
        else f"{verdict.reason}: {verdict.message}"
    )
    return f"{text}; witness {witness}" if witness else text


def _expectation(verdict: Verdict) -> str:
    expected = verdict.values.get("expected_bits_per_second")
    source = verdict.notes.get("expectation", "")
    return f"{expected / 1e9:.4g} Gb/s: {source}" if expected else source
