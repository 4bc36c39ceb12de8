"""What the node has to tell the API server, and when: the latest state wins, nothing is lost,
nothing is written twice. Pure.

A healthy node writes nothing but a heartbeat. Writes are paced (a burst of three, then six a
minute), so that a flapping port on each of thousands of nodes is no storm; a heartbeat never takes
the last place from a change.
"""

import collections
import dataclasses
import hashlib
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.node import condition
from agent.node.condition import Condition
from agent.node.fabricnode import Status

PREFIX = "fabric-readiness.dev"
_BURST = 3.0
_REFILL_PER_SECOND = 6 / 60
_HEARTBEAT_SPREAD = 0.2
_BACKOFF_FIRST_SECONDS = 1.0
_BACKOFF_LAST_SECONDS = 60.0
# What a server may ask for at most: a nonsense answer must not silence a node for ever.
_RETRY_AFTER_LAST_SECONDS = 300.0
_MAX_EVENTS = 64


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that one patch says.

    `since` is when the condition's status last flipped, as RFC 3339 in UTC.
    """

    condition: Condition
    since: str
    boot_id: str
    profile_hash: str
    uid: str
    """Of the Node object: a new one knows nothing of what the old one was told."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A core/v1 Event about the node; `uid` is that of the Node object it happened to."""

    name: str
    uid: str
    reason: str
    message: str
    warning: bool
    at: str
    """RFC 3339 in UTC."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Write `state` to the node. `heartbeat`: only to say that it still holds."""

    state: State
    heartbeat: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """Write `status` into the node's FabricNode."""

    status: Status


Action = Patch | Event | Object


class Outbox:
    """Holds what is to be sent. Times are seconds of any clock that does not jump."""

    def __init__(
        self, node: str, heartbeat_seconds: float, delivered: State | None, now: float
    ) -> None:
        """`delivered` is what the server was last told in this boot, None where that is not known."""
        spread = _HEARTBEAT_SPREAD * (2 * _phase(node) - 1)
        self._heartbeat_seconds = heartbeat_seconds * (1 + spread)
        self._wanted: State | None = None
        self._untold_since: float | None = None
        self.delivered = delivered
        self._delivered_at = now
        self._events: collections.deque[Event] = collections.deque()
        self.events_dropped = 0
        self._tokens = _BURST
        self._tokens_at = now
        self._patch_not_before = self._event_not_before = 0.0
        self._patch_failures = self._event_failures = 0
        self._object: Status | None = None
        self._object_delivered: Status | None = None
        self._object_not_before = 0.0
        self._object_failures = 0

    def overdue(self, now: float) -> float:
        """For how many seconds what the node is has not been told; 0 while it has.

        A heartbeat that is refused counts too, from when it was due.
        """
        if self._untold_since is not None:
            return now - self._untold_since
        return max(0.0, now - self._delivered_at - self._heartbeat_seconds)

    def know_object(self, delivered: Status | None) -> None:
        """What the FabricNode says, when it was seen for the first time."""
        self._object_delivered = delivered

    def want_object(self, status: Status | None) -> None:
        """What the FabricNode should say; None where there is none to write to."""
        self._object = status

    def want(self, state: State) -> None:
        """The node's state now; what was wanted before and not yet sent is forgotten."""
        self._wanted = state

    def tell(self, event: Event) -> None:
        """One more event, sent in order; the oldest goes when too many wait for a server that is away."""
        if len(self._events) == _MAX_EVENTS:
            self._events.popleft()
            self.events_dropped += 1
        self._events.append(event)

    def next(self, now: float) -> Action | None:
        """What to send now. Nothing is removed by this: see `done` and `failed`."""
        self._refill(now)
        if self._wanted is None or self._wanted == self.delivered:
            self._untold_since = None
        elif self._untold_since is None:
            self._untold_since = now
        patch = self._patch(now)
        if patch is not None:
            return patch
        if self._events and now >= self._event_not_before:
            return self._events[0]
        # The condition gates, this does not: a place is left for it.
        ready = now >= self._object_not_before and self._tokens >= 2  # noqa: PLR2004
        if ready and self._object is not None and self._object != self._object_delivered:
            return Object(status=self._object)
        return None

    def _patch(self, now: float) -> Patch | None:
        wanted = self._wanted
        if wanted is None or now < self._patch_not_before:
            return None
        if wanted != self.delivered:
            return Patch(state=wanted, heartbeat=False) if self._tokens >= 1 else None
        due = now >= self._delivered_at + self._heartbeat_seconds
        # One place is left for a change that may come at any moment.
        return Patch(state=wanted, heartbeat=True) if due and self._tokens >= 2 else None  # noqa: PLR2004

    def _refill(self, now: float) -> None:
        grown = self._tokens + (now - self._tokens_at) * _REFILL_PER_SECOND
        self._tokens, self._tokens_at = min(_BURST, grown), now

    def done(self, action: Action, now: float) -> None:
        """It was accepted."""
        if isinstance(action, Patch):
            self._tokens -= 1
            self.delivered, self._delivered_at = action.state, now
            self._patch_failures, self._patch_not_before = 0, 0.0
        elif isinstance(action, Object):
            self._tokens -= 1
            self._object_delivered = action.status
            self._object_failures, self._object_not_before = 0, 0.0
        else:
            self._remove(action)
            self._event_failures, self._event_not_before = 0, 0.0

    def failed(self, action: Action, now: float, retry_after_seconds: float | None = None) -> None:
        """It was not; it waits longer each time, or as long as the server said (five minutes at most)."""
        if isinstance(action, Patch):
            self._tokens -= 1
            self._patch_failures += 1
            pause = _pause(self._patch_failures, retry_after_seconds)
            self._patch_not_before = now + pause
        elif isinstance(action, Object):
            self._tokens -= 1
            self._object_failures += 1
            self._object_not_before = now + _pause(self._object_failures, retry_after_seconds)
        else:
            self._event_failures += 1
            self._event_not_before = now + _pause(self._event_failures, retry_after_seconds)

    def refused(self, event: Event) -> None:
        """The server will never take this event; the next ones are not held up by it."""
        self._remove(event)
        self.events_dropped += 1

    def _remove(self, event: Event) -> None:
        if self._events and self._events[0] is event:
            self._events.popleft()


def _pause(failures: int, retry_after_seconds: float | None) -> float:
    """Seconds; doubled each time, with jitter so that a fleet does not come back at once."""
    if retry_after_seconds is not None:
        return min(_RETRY_AFTER_LAST_SECONDS, max(1.0, retry_after_seconds))
    doubled = _BACKOFF_FIRST_SECONDS * 2.0 ** (min(failures, 10) - 1)
    longest = min(_BACKOFF_LAST_SECONDS, doubled)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  (spreads load, hides nothing)


def _phase(node: str) -> float:
    """A fixed number from 0 to 1 for a node."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:4], "big") / 0xFFFFFFFF


def patch_body(state: State, heartbeat_at: str) -> dict[str, Any]:
    """A strategic merge patch of a Node's status: our condition by its type, our label and
    annotations, nothing else.

    `metadata.uid` makes the server refuse it (422) where the Node is another one than the token was
    made for.
    """
    said = state.condition
    return {
        "metadata": {
            "uid": state.uid,
            "labels": {f"{PREFIX}/verified": "true" if said.verified else "false"},
            "annotations": {
                f"{PREFIX}/verified-boot-id": state.boot_id if said.verified else "",
                f"{PREFIX}/profile-hash": state.profile_hash,
                f"{PREFIX}/blocked-rung": said.blocked_rung,
            },
        },
        "status": {
            "conditions": [
                {
                    "type": condition.TYPE,
                    "status": said.status,
                    "reason": said.reason,
                    "message": said.message,
                    "lastHeartbeatTime": heartbeat_at,
                    "lastTransitionTime": state.since,
                }
            ]
        },
    }


def event_body(event: Event, node: str) -> Mapping[str, Any]:
    """A core/v1 Event about the Node."""
    return {
        "metadata": {"name": event.name, "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": event.uid},
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": event.at,
        "lastTimestamp": event.at,
        "count": 1,
        "source": {"component": "fabric-agent", "host": node},
        "reportingComponent": f"{PREFIX}/agent",
        "reportingInstance": node,
    }


def event_name(node: str, boot_id: str, *parts: str) -> str:
    """The same name for the same event: sending it again is refused as a conflict, and so never counted twice."""
    digest = hashlib.sha256("/".join((boot_id, *parts)).encode()).hexdigest()[:16]
    return f"{node[:200]}.fabric.{digest}"
