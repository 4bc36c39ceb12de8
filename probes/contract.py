"""The words that probes and their callers share: host, facts, limits, verdict, and the messages
between processes.

A probe is two functions. `read(host) -> facts` does all the I/O and has no opinion; `judge(facts,
limits) -> Verdict` has the opinion and does no I/O. They are typed as a pair, so a `judge` for
other facts than `read` gives does not type-check.

This is the only module of `probes` that the agent imports. It stays free of hardware and of
Kubernetes, and cheap to import.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

# Rungs in the order in which they are climbed: a rung means nothing while a lower one does not
# hold. Rungs that are not named here (runtime, storage, custom) stand beside the ladder.
LADDER = ("inventory", "driver", "loopback", "podview", "peer")

# What crosses a pipe is bounded, because the other end is untrusted (a crashed driver library
# prints what it likes).
MAX_LINE_BYTES = 256 * 1024
MAX_MESSAGE_CHARS = 1024


class Outcome(enum.StrEnum):
    """What a check found."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIP = "skip"
    """That hardware or partner is not here.

    Never said of something that should be here and is not.
    """
    UNKNOWN = "unknown"
    """Could not be read, run or decided. Never opens the gate."""


class Kind(enum.StrEnum):
    """How fast a failure acts on a node that was verified before."""

    MECHANICS = "mechanics"
    """Acts at once: a port is down, bytes did not arrive."""
    PERFORMANCE = "performance"
    """Acts when seen twice in five minutes: slow, or a flap."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check says of a machine, or (in `parts`) of one device, port or GPU of it.

    `reason` is CamelCase, stable and documented; `message` names the part and the evidence for a
    person. `values` are numbers with the unit in the name (`measured_bits_per_second`); `notes` are
    words (`witness: partial`, `expectation: profile h200`). `warning`, on a pass, is the reason of
    something that deserves an event but never gates.
    """

    outcome: Outcome
    reason: str
    message: str
    part: str = ""
    kind: Kind = Kind.MECHANICS
    warning: str = ""
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parts: tuple["Verdict", ...] = ()


# Worst first. A failure that was seen outranks what could not be seen; a skip says least.
_SEVERITY = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS, Outcome.SKIP)


def together(parts: Iterable[Verdict], *, passed: str, message: str, absent: str) -> Verdict:
    """One verdict over many parts: the worst outcome, speaking with the voice of the first part
    that has it.

    Args:
        parts: one verdict per device, port or GPU. None at all is a SKIP with `absent` as its
            message.
        passed: reason when every part passed.
        message: message when every part passed.
        absent: message when there is no part to judge.
    """
    all_parts = tuple(parts)
    for outcome in _SEVERITY:
        same = [part for part in all_parts if part.outcome is outcome]
        if not same:
            continue
        if outcome is Outcome.PASS:
            warning = next((part.warning for part in same if part.warning), "")
            return Verdict(
                outcome=outcome, reason=passed, message=message, warning=warning, parts=all_parts
            )
        more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
        # A mechanical fault among the failing parts must not wait behind a performance one.
        lead = next((part for part in same if part.kind is Kind.MECHANICS), same[0])
        return dataclasses.replace(
            lead, message=lead.message + more, part="", values={}, notes={}, parts=all_parts
        )
    return Verdict(outcome=Outcome.SKIP, reason="NothingToCheck", message=absent)


class Unreadable(Exception):  # noqa: N818  (a fact that is unreadable, not an error of ours)
    """A fact could not be read: where, and why, in one line."""

    def __init__(self, where: Path | str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = str(where)
        self.why = why


SEEN = "seen"
"""Key of `Host.inputs`: the probe's own parts that passed earlier in this boot, one a line."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine a probe looks at.

    `root` is a prefix for /sys, /proc, /dev and /run: `/` on a real node, a captured tree in tests.
    `gid_index` is the operator's choice of RoCE GID (as in NCCL_IB_GID_INDEX); None lets the probe
    choose. `inputs` are facts that only Kubernetes knows, handed in by the agent.
    """

    root: Path = Path("/")
    gid_index: int | None = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def path(self, absolute: str) -> Path:
        """`/sys/class/x` under this host's root."""
        return self.root / absolute.lstrip("/")

    @property
    def seen(self) -> tuple[str, ...]:
        """Parts of this probe that passed earlier in this boot; none where nobody remembers."""
        return tuple(filter(None, self.inputs.get(SEEN, "").split("\n")))

    @property
    def live(self) -> bool:
        """True where libraries (verbs, NVML) speak about the same machine as the files under `root`."""
        return self.root == Path("/")


Percent = Annotated[float, msgspec.Meta(ge=1, le=100)]
"""A share that a limit may demand. Below 1 it would demand nothing."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a probe's limits: every field is a setting of that probe, with unit in its name and a
    default.

    `origins` tells where a value came from when it is not the default (`profile h200`, `override`).
    It is filled by the caller and can't be set by users.
    """

    origins: dict[str, str] = {}

    def origin(self, field: str) -> str:
        """Where the value of `field` came from."""
        return self.origins.get(field, "default")


F = TypeVar("F")
L = TypeVar("L", bound=Limits)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Generic[F, L]):
    """A check. Each probe module assigns one to `PROBE`; its file and folder give its name and
    rung.

    `every`: seconds between two runs on a healthy node. `deadline`: seconds after which its process
    is killed.
    `moves_data`: it sends bytes through a port, so it gets a process of its own and runs rarely.
    """

    read: Callable[[Host], F]
    judge: Callable[[F, L], Verdict]
    limits: type[L]
    every: float
    deadline: float
    moves_data: bool = False


# --- Messages between the agent and its probe processes: one JSON object per line ---


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeInfo:
    """What a caller needs to know to schedule a probe.

    `summary` is the first paragraph of its module's docstring, in one line.
    """

    name: str
    rung: str
    every: float
    deadline: float
    moves_data: bool
    summary: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong in the settings' limits: where it stands, as keys from the top, and what it is."""

    where: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All probes that could be loaded, their limits with defaults, and why the others could not be loaded.

    `problems` are what is wrong with the settings' limits that were handed in.
    """

    probes: tuple[ProbeInfo, ...]
    broken: Mapping[str, str]
    defaults: Mapping[str, Mapping[str, object]]
    problems: tuple[Problem, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Run one probe. `limits` holds only what settings change; `origins` says who changed it."""

    id: int
    probe: str
    root: str = "/"
    gid_index: int | None = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, object] = dataclasses.field(default_factory=dict)
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A line from a probe process: the verdict on request `id`, or (id 0) a sign of life.

    `changed` names the ports whose state changed since the last line; a caller takes it as "look
    again now".
    """

    id: int = 0
    verdict: Verdict | None = None
    seconds: float = 0.0
    changed: tuple[str, ...] = ()


def by_rung(name: str) -> tuple[int, str]:
    """Sort key of a probe name (`driver.ports`): ladder order first, then what stands beside it."""
    rung = name.split(".", 1)[0]
    return (LADDER.index(rung) if rung in LADDER else len(LADDER), name)
