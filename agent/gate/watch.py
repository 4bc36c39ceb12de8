"""Follows one collection of the API server and keeps a small record of each object in it.

A full list, in pages, then a watch from the list's version on. A watch that ends, cleanly or not,
is resumed where it was; history that the server no longer has (410) means a new list. The end of a
response proves nothing: servers end watches early, so what was not seen is never taken for gone.

While nothing can be heard the mirror is blind, and says so.
"""

import dataclasses
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic

from agent.cluster import connection, errors
from agent.gate import metrics, view
from agent.gate.view import R

_FIRST_DELAY_SECONDS = 0.5
_LAST_DELAY_SECONDS = 30.0
# A resumed watch that fails this often in a row starts from a new list: its version may be one that
# the server can't serve (a restored etcd is behind what was seen before).
_FAILURES_BEFORE_LIST = 4

# Objects per page of a list: bounds the memory that it takes in a cluster of any size.
PAGE = 500

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Collection(Generic[R]):
    """What to follow.

    `what` names it for people and metrics (`nodes`). `read` makes the record of an object's JSON,
    None where the object is of no interest (yet).
    """

    what: str
    path: str
    query: Mapping[str, str]
    read: Callable[[object], R | None]


def listed(
    api: connection.Connection, collection: Collection[R], page: int = PAGE
) -> tuple[dict[str, R], str]:
    """All of a collection, page by page, and the version at which it was so.

    Raises:
        ApiError: any of its kinds.
    """
    found: dict[str, R] = {}
    token = ""
    while True:
        query = {**collection.query, "limit": str(page)}
        if token:
            query["continue"] = token
        answer = api.get(collection.path, query)
        items, token, version = _page(answer, collection.what)
        for record in map(collection.read, items):
            if record:
                found[record.name] = record
        # All pages show the state at one version.
        if not token:
            return found, version


def _page(answer: object, what: str) -> tuple[list[object], str, str]:
    """Objects, continue token and version of a list's page."""
    whole = answer if isinstance(answer, dict) else {}
    metadata = whole.get("metadata")
    items = whole.get("items") or []  # Go writes an empty list as null
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if (
        not isinstance(metadata, dict)
        or not isinstance(items, list)
        or not isinstance(version, str)
    ):
        raise errors.Unreachable(f"the list of {what} is no list")
    return items, str(metadata.get("continue") or ""), version


class Watch(Generic[R]):
    """Keeps a mirror true to a collection, until told to stop."""

    def __init__(
        self,
        api: connection.Connection,
        collection: Collection[R],
        mirror: view.Mirror[R],
        counters: metrics.Metrics,
        *,
        session_seconds: float = 120.0,
        margin_seconds: float = 15.0,
        page: int = PAGE,
    ) -> None:
        """Prepares; `run` does it.

        Args:
            api: where from.
            collection: what.
            mirror: where to.
            counters: where it is counted.
            session_seconds: how long the server keeps one watch open.
            margin_seconds: a connection that said nothing for a session and this long is dead.
            page: objects per page of a list.
        """
        self._api = api
        self._collection: Collection[R] = collection
        self._mirror: view.Mirror[R] = mirror
        self._counters = counters
        self._session_seconds = session_seconds
        self._silence_seconds = session_seconds + margin_seconds
        self._page = page
        self._version = ""
        self._failures = 0
        self._stop = threading.Event()

    def stop(self) -> None:
        """Makes `run` return, when the open watch has something to say or ends."""
        self._stop.set()

    def run(self) -> None:
        """Lists and watches for ever. Failures are waited out, and never end it."""
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
            except errors.ApiError as error:
                gone = isinstance(error, errors.Conflict) and error.gone
                self._lost("expired" if gone else "failed", str(error))
                if gone or self._failures % _FAILURES_BEFORE_LIST == 0:
                    self._version = ""
            if self._failures:
                self._stop.wait(self._delay())

    def _lost(self, cause: str, why: str) -> None:
        self._failures += 1
        self._mirror.sight(current=False)
        self._counters.watch_breaks.labels(watch=self._collection.what, cause=cause).inc()
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        _log.log(level, "watch of %s: %s", self._collection.what, why)

    def _delay(self) -> float:
        """Full jitter, so that nothing that fails together comes back together."""
        ceiling = _FIRST_DELAY_SECONDS * 2 ** min(self._failures, 10)
        return random.uniform(0, min(ceiling, _LAST_DELAY_SECONDS))  # noqa: S311  (no secret)

    def _list(self) -> None:
        """Replaces the mirror by what is there now, when all pages have come."""
        found, version = listed(self._api, self._collection, self._page)
        self._mirror.replace(found)
        self._version = version

    def _follow(self) -> None:
        """Takes over changes until the server ends the watch."""
        query = {
            **self._collection.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(self._session_seconds))),
            "resourceVersion": self._version,
        }
        started = time.monotonic()
        with self._api.stream(
            self._collection.path, query, silence_seconds=self._silence_seconds
        ) as lines:
            self._mirror.sight(current=True)
            for line in lines:
                self._take(line)
                self._failures = 0
                if self._stop.is_set():
                    return
        # A server that ends each watch at once must not be asked as fast as it answers.
        ended_early = time.monotonic() - started < 1.0
        self._failures = self._failures + 1 if ended_early else 0

    def _take(self, line: bytes) -> None:
        event = self._parse(line)
        kind, raw = event.get("type"), event.get("object")
        if not isinstance(raw, dict):
            raise errors.Unreachable(f"the watch of {self._collection.what} said something else")
        if kind == "ERROR":
            self._refused(raw)
        metadata = raw.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(version, str):
            raise errors.Unreachable(f"the watch of {self._collection.what} gave no version")
        record = self._collection.read(raw)
        if kind in {"ADDED", "MODIFIED"} and record:
            self._mirror.put(record)
        elif kind != "BOOKMARK":
            self._mirror.drop(str(metadata.get("name")))
        self._version = version

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except ValueError as error:
            what = self._collection.what
            raise errors.Unreachable(f"the watch of {what} broke off within a line") from error
        return event if isinstance(event, dict) else {}

    def _refused(self, status: Mapping[str, Any]) -> None:
        why = str(status.get("message"))[:200]
        if status.get("code") == 410:  # noqa: PLR2004  (HTTP's Gone)
            raise errors.Conflict(why, kind="gone")
        raise errors.Unreachable(f"the watch of {self._collection.what} ended: {why}")
