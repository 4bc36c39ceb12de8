"""Sends what the outbox holds, in a thread of its own, so that a server that is away never holds up a probe."""

import logging
import threading
import time
from collections.abc import Callable

from agent.cluster import errors
from agent.cluster.api import Api
from agent.node import clock, outbox
from agent.node.fabricnode import Status
from agent.node.metrics import NodeMetrics
from agent.node.outbox import Action, Event, Object, Outbox, Patch, State

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0
# The bucket may hold a change back for ten seconds, a server that is started anew a minute or two.
_UNHEARD_SECONDS = 120.0
_EVENT_NAMESPACE = "default"


class Publisher:
    """Owns all writes of this node.

    Args:
        api: the client; used by this thread alone.
        node: our Node's name.
        box: what is to be sent.
        metrics: counts writes by what became of them.
        delivered: called after each accepted patch, in the publisher's thread.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        box: Outbox,
        metrics: NodeMetrics,
        delivered: Callable[[State], None],
    ) -> None:
        self._api = api
        self._node = node
        self._box = box
        self._metrics = metrics
        self._delivered = delivered
        self._wake = threading.Condition()
        self._stopping = False
        self._complained = ""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is doing; writes nothing more."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=2.0)

    def want(self, state: State) -> None:
        """The node's state now."""
        with self._wake:
            self._box.want(state)
            self._wake.notify()

    def know_object(self, delivered: Status | None) -> None:
        """What the FabricNode says, when it was seen for the first time."""
        with self._wake:
            self._box.know_object(delivered)

    def want_object(self, status: Status | None) -> None:
        """What the FabricNode should say; None where there is none."""
        with self._wake:
            self._box.want_object(status)
            self._wake.notify()

    def tell(self, event: Event) -> None:
        """One more event."""
        with self._wake:
            self._box.tell(event)
            self._wake.notify()

    def unheard(self) -> str:
        """Why the API server does not know what this node says, empty while it does or was told not long ago."""
        with self._wake:
            overdue = self._box.overdue(time.monotonic())
        if overdue < _UNHEARD_SECONDS:
            return ""
        return f"the API server has not taken what this node says for {overdue:.0f} s"

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                action = self._box.next(time.monotonic())
                if action is None and not self._stopping:
                    self._wake.wait(_IDLE_SECONDS)
                if self._stopping:
                    return
            if action is not None:
                self._send(action)

    def _send(self, action: Action) -> None:
        kind = _kind(action)
        try:
            self._write(action)
        except errors.ApiError as error:
            self._metrics.api_writes.labels(kind=kind, result=error.action).inc()
            self._complain(error)
            self._put_off(action, error)
            return
        self._metrics.api_writes.labels(kind=kind, result="accepted").inc()
        self._complained = ""
        with self._wake:
            self._box.done(action, time.monotonic())
        if isinstance(action, Patch):
            self._delivered(action.state)

    def _write(self, action: Action) -> None:
        if isinstance(action, Patch):
            self._api.patch_node_status(
                self._node, outbox.patch_body(action.state, clock.timestamp())
            )
            return
        if isinstance(action, Object):
            self._api.patch_fabric_node_status(self._node, action.status)
            return
        try:
            self._api.create_event(_EVENT_NAMESPACE, outbox.event_body(action, self._node))
        except errors.Conflict as error:
            # It was sent before, and only the answer was lost.
            if error.kind != "conflict":
                raise

    def _put_off(self, action: Action, error: errors.ApiError) -> None:
        now = time.monotonic()
        with self._wake:
            if isinstance(action, Event) and isinstance(error, errors.Conflict):
                self._box.refused(action)
            elif isinstance(error, errors.Throttled):
                self._box.failed(action, now, error.retry_after_seconds)
            else:
                self._box.failed(action, now)

    def _complain(self, error: errors.ApiError) -> None:
        """Once for each kind of trouble, not once a second for as long as it lasts."""
        level = logging.DEBUG if error.action == self._complained else logging.WARNING
        self._complained = error.action
        hint = ""
        if isinstance(error, errors.Conflict) and error.kind in {"invalid", "gone"}:
            hint = "; the Node was deleted or made anew: this pod's verdict is not its own"
        _log.log(level, "the API server did not take a write: %s%s", error, hint)


def _kind(action: Action) -> str:
    """The word for metrics."""
    if isinstance(action, Patch):
        return "heartbeat" if action.heartbeat else "change"
    return "event" if isinstance(action, Event) else "object"
