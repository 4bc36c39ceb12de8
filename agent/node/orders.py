"""Follows this node's own FabricNode: that it is there, what it said before, and what people ask for.

A thread of its own, over a connection of its own: a watch waits for the server all the time. The
agent may see no other object. While there is none (the gate makes it) it looks again, at first soon, then each half
minute.
"""

import dataclasses
import logging
import random
import threading
import time

import msgspec

from agent.cluster import errors
from agent.cluster.api import Api
from agent.node.fabricnode import Status

_log = logging.getLogger(__name__)

_ABSENT_FIRST_SECONDS = 1.0
_ABSENT_LAST_SECONDS = 30.0
_AFTER_ERROR_SECONDS = 10.0
_SESSION_SECONDS = 300.0
_MAX_RECHECK_CHARS = 64


class _Owner(msgspec.Struct, frozen=True):
    uid: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    owner_references: tuple[_Owner, ...] = ()


class _Spec(msgspec.Struct, frozen=True):
    recheck: str = ""


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: msgspec.Raw = msgspec.Raw(b"null")


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the object said last. `status` is what it says of this node, None where that can't be read."""

    recheck: str
    status: Status | None


class Follower:
    """Knows the latest orders, or that there is no object of this node."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._lock = threading.Lock()
        self._uid = ""
        self._orders: Orders | None = None
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        """Starts the thread, which lives as long as the process."""
        self._thread.start()

    def latest(self, uid: str) -> Orders | None:
        """The orders for the Node object of that uid; None while there is no FabricNode of its own."""
        with self._lock:
            return self._orders if self._uid == uid else None

    def _run(self) -> None:
        absent = _ABSENT_FIRST_SECONDS
        while True:
            pause = 1.0
            try:
                self._follow()
                absent = _ABSENT_FIRST_SECONDS
            except errors.ApiError as error:
                gone = isinstance(error, errors.Conflict) and error.gone
                if gone:
                    self._take(None)
                    pause = absent = min(2 * absent, _ABSENT_LAST_SECONDS)
                else:
                    pause = _AFTER_ERROR_SECONDS
                    _log.debug("the FabricNode of this node can't be followed: %s", error)
            except msgspec.MsgspecError as error:
                pause = _ABSENT_LAST_SECONDS
                _log.warning("the FabricNode of this node can't be read: %s", error)
            # A fleet must not come back in step.
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  (no secret)

    def _follow(self) -> None:
        first = msgspec.json.decode(self._api.get_fabric_node(self._node), type=_Object)
        self._take(first)
        version = first.metadata.resource_version
        for line in self._api.watch_fabric_node(self._node, version, _SESSION_SECONDS):
            event = msgspec.json.decode(line, type=_Event)
            if event.type in {"ADDED", "MODIFIED"}:
                self._take(msgspec.json.decode(event.object, type=_Object))
            elif event.type == "DELETED":
                self._take(None)
            elif event.type != "BOOKMARK":
                return

    def _take(self, found: _Object | None) -> None:
        owners = found.metadata.owner_references if found else ()
        with self._lock:
            self._uid = owners[0].uid if len(owners) == 1 else ""
            self._orders = None
            if found is not None:
                recheck = found.spec.recheck[:_MAX_RECHECK_CHARS]
                self._orders = Orders(recheck=recheck, status=_status(found.status))


def _status(raw: msgspec.Raw) -> Status | None:
    """What an agent wrote there before; one of another version may have written something else."""
    try:
        return msgspec.json.decode(raw, type=Status | None)
    except msgspec.MsgspecError:
        return None
