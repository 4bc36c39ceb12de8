"""What the node's events say: one for each transition of the condition, one for each new warning.

Pure. An event keeps the uid of the Node object that it was about: a Node that was made anew since
is told nothing of it.
"""

import dataclasses

from agent.node import outbox
from agent.node.condition import Condition
from agent.node.ledger import Run
from probes.contract import Verdict


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Whom the events are about: a Node object, and the boot it is in."""

    node: str
    uid: str
    boot_id: str


def transition(about: About, now: Condition, at: str) -> outbox.Event:
    """The event of a condition that changed its status or reason. `at`: RFC 3339 in UTC."""
    return outbox.Event(
        name=outbox.event_name(about.node, about.boot_id, now.status, now.reason, at),
        uid=about.uid,
        reason=now.reason,
        message=now.message,
        warning=now.status == "False",
        at=at,
    )


def warnings(about: About, run: Run, before: Verdict | None, at: str) -> list[outbox.Event]:
    """One event for each warning of this run that a part did not have in the one `before`.

    The same warning in other words (a rate that was measured again) is the same.
    """
    known = _warnings(before) if before else {}
    return [
        outbox.Event(
            name=outbox.event_name(about.node, about.boot_id, run.probe, part, reason),
            uid=about.uid,
            reason=reason,
            message=message,
            warning=True,
            at=at,
        )
        for (part, reason), message in _warnings(run.verdict).items()
        if (part, reason) not in known
    ]


def _warnings(verdict: Verdict) -> dict[tuple[str, str], str]:
    """The message by part and reason of each warning; of the whole only where no part has one."""
    parts = [part for part in verdict.parts if part.warning] or [verdict]
    return {(part.part, part.warning): part.message for part in parts if part.warning}
