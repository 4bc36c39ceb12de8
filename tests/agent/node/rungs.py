"""A small ladder and short ways to fill a ledger, for tests of the pure parts."""

import contextlib
import resource
from collections.abc import Iterator

from agent.node import ledger as ledgers
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger, Run
from agent.settings import HysteresisSettings
from probes.contract import Kind, Outcome, ProbeInfo, Verdict

HYSTERESIS = HysteresisSettings()
BOOT = "5a0c2a0e-0000-4000-8000-000000000001"


def info(name: str, *, moves_data: bool = False, every: float = 30) -> ProbeInfo:
    """A probe's entry in the catalogue."""
    return ProbeInfo(
        name=name,
        rung=name.split(".", maxsplit=1)[0],
        every=every,
        deadline=5,
        moves_data=moves_data,
        summary="",
    )


LADDER = Ladder(
    probes=(
        info("inventory.devices"),
        info("driver.ports"),
        info("loopback.bandwidth", moves_data=True, every=21600),
    ),
    rungs=("inventory", "driver", "loopback"),
)
PASS, FAIL, SKIP, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.SKIP, Outcome.UNKNOWN
NAMES = tuple(one.name for one in LADDER.probes)


def verdict(outcome: Outcome, reason: str = "", *, slow: bool = False) -> Verdict:
    """A verdict; `slow` makes its failure one of performance."""
    return Verdict(
        outcome=outcome,
        reason=reason or f"Was{outcome.value.title()}",
        message=f"rxe0/1 {outcome.value}",
        kind=Kind.PERFORMANCE if slow else Kind.MECHANICS,
    )


def record(
    before: Ledger,
    probe: str,
    outcome: Outcome,
    at: float,
    *,
    slow: bool = False,
    reason: str = "",
    started: float | None = None,
) -> Ledger:
    """The ledger after one run that ended at `at`."""
    run = Run(
        probe=probe,
        verdict=verdict(outcome, reason, slow=slow),
        started=at - 0.5 if started is None else started,
        ended=at,
    )
    return ledgers.record(before, run, LADDER, HYSTERESIS)


def empty() -> Ledger:
    """A new boot."""
    return Ledger(boot_id=BOOT)


def verified(at: float = 100.0) -> Ledger:
    """A node whose every probe passed."""
    ledger = empty()
    for name in NAMES:
        ledger = record(ledger, name, PASS, at)
    assert ledger.verified
    return ledger


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    """The kernel writes no file of this process beyond sixteen bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
