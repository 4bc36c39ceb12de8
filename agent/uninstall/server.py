"""The API server, asked again while it is busy or away; and nothing written in a dry run."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from agent.cluster import connection, errors

_PAGE = 250
_FIRST_DELAY_SECONDS = 0.5
_LAST_DELAY_SECONDS = 10.0
_LOOK_SECONDS = 0.2
# A list that takes longer than the server keeps its version starts anew.
_LISTS = 5

T = TypeVar("T")


class Server:
    """One API server, and how long to have patience with it. Threads may share it."""

    def __init__(
        self, api: connection.Connection, *, patience_seconds: float, dry_run: bool
    ) -> None:
        self._api = api
        self._patience_seconds = patience_seconds
        self.dry_run = dry_run

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The object or list at a path; None where there is none, or no such kind.

        Raises:
            ApiError: any of its kinds, after patience ran out.
        """
        try:
            found: dict[str, Any] = self._insist(lambda: self._api.get(path, query))
        except errors.Conflict as error:
            if error.gone:
                return None
            raise
        return found

    def items(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a collection that is small.

        Raises:
            ApiError: any of its kinds.
        """
        return [item for page in self.pages(path, selector) for item in page]

    def pages(self, path: str, selector: str = "") -> Iterator[list[dict[str, Any]]]:
        """The objects of a collection, a few hundred at a time; none where there is no such kind.

        Raises:
            ApiError: any of its kinds; Conflict of kind `gone` when it took too long, and has to
                be begun again.
        """
        query = {"limit": str(_PAGE)}
        if selector:
            query["labelSelector"] = selector
        page = self.get(path, query)
        while page is not None:
            yield page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                return
            page = self._insist(lambda: self._api.get(path, {**query, "continue": token}))  # noqa: B023  (called at once)

    def whole(self, read: Callable[[], T]) -> T:
        """What a function makes of pages, begun again when they outlived the server's memory.

        Raises:
            ApiError: any of its kinds.
        """
        for attempt in range(_LISTS):
            try:
                return read()
            except errors.Conflict as error:
                if not error.gone or attempt == _LISTS - 1:
                    raise
        raise AssertionError  # the loop's last turn returns or raises

    def delete(self, path: str) -> bool:
        """Has an object deleted; whether there was one.

        Raises:
            ApiError: any of its kinds.
        """
        if self.dry_run:
            return self.get(path) is not None
        try:
            self._insist(lambda: self._api.delete(path))
        except errors.Conflict as error:
            if error.gone:
                return False
            raise
        return True

    def json_patch(self, path: str, operations: list[dict[str, Any]]) -> None:
        """Applies a JSON patch.

        Raises:
            ApiError: any of its kinds.
        """
        self._insist(lambda: self._api.json_patch(path, operations))

    def strategic_patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Applies a strategic merge patch.

        Raises:
            ApiError: any of its kinds.
        """
        self._insist(lambda: self._api.strategic_patch(path, body))

    def wait(self, done: Callable[[], bool]) -> bool:
        """Whether it becomes so while there is patience. In a dry run nothing changes."""
        deadline = time.monotonic() + self._patience_seconds
        while not done():
            if self.dry_run or time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _insist(self, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience_seconds
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                return call()
            except (errors.Throttled, errors.Unreachable) as error:
                pause = error.retry_after_seconds if isinstance(error, errors.Throttled) else delay
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            delay = min(delay * 2, _LAST_DELAY_SECONDS)
