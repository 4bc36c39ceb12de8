"""What was measured, against what should be: the table of `make bench` and build/bench.json."""

import dataclasses
import json
import os
import pathlib
import platform
from collections.abc import Sequence

import rich.table

from tests.cluster import prepare

_BUILD = prepare.DOCKERFILE.parent / "build"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table. `target` is words with a number (`<= 64`); `peer` a reference of the same run."""

    value: float
    unit: str
    target: str
    peer: float | None = None


def write(results: dict[str, Result]) -> None:
    """Writes build/bench.json."""
    _BUILD.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "processor": _processor()}
    lines = {name: dataclasses.asdict(result) for name, result in results.items()}
    (_BUILD / "bench.json").write_text(json.dumps({**lines, "machine": machine}, indent=1) + "\n")


def _processor() -> str:
    lines: Sequence[str] = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(": ", 1)[1] for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def table(results: dict[str, Result]) -> rich.table.Table:
    """For a terminal."""
    made = rich.table.Table(title="Measured against the budgets")
    for column in ("name", "value", "unit", "target", "peer"):
        made.add_column(column)
    for name, result in results.items():
        peer = "" if result.peer is None else f"{result.peer:.4g}"
        made.add_row(name, f"{result.value:.4g}", result.unit, result.target, peer)
    return made
