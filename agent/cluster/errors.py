"""What can go wrong with a call to the API server: four kinds, since callers do four different
things about them.

Each is one line for a person, without anything secret.
"""

import msgspec


class ApiError(Exception):
    """A call did not do what it should. `action` is a word for metrics."""

    action = "error"


class Unreachable(ApiError):  # noqa: N818
    """No answer, a broken one, or the server's own failure (5xx): the request is fine, try again later."""

    action = "unreachable"


class Refused(ApiError):  # noqa: N818
    """We may not (401, 403): credentials or rights are missing."""

    action = "refused"


class Conflict(ApiError):  # noqa: N818
    """The object is not what the request took it for.

    `kind` is `conflict` (409), `gone` (404, 410) or `invalid` (422).
    """

    action = "conflict"

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def gone(self) -> bool:
        """Whether the object, or the version that was asked for, is no more."""
        return self.kind == "gone"


class Throttled(ApiError):  # noqa: N818
    """The server has too much to do (429) and says how long to wait."""

    action = "throttled"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


_REFUSED = {401, 403}
_CONFLICTS = {404: "gone", 409: "conflict", 410: "gone", 422: "invalid"}
_TOO_MANY = 429
_MAX_CHARS = 300
_MAX_WAIT_SECONDS = 3600.0


def of_answer(call: str, status: int, said: bytes, retry_after: str | None) -> ApiError:
    """What an answer that is no success means.

    Args:
        call: method and path.
        status: the status code.
        said: the body, or its start.
        retry_after: that header.
    """
    text = f"{call}: {status} {_message(said)}"
    if status == _TOO_MANY:
        return Throttled(text, retry_after_seconds=_seconds(retry_after))
    if status in _REFUSED:
        return Refused(text)
    kind = _CONFLICTS.get(status)
    return Conflict(text, kind=kind) if kind else Unreachable(text)


def _message(said: bytes) -> str:
    """The message of a Status object, or the start of whatever came, in one line."""
    try:
        status = msgspec.json.decode(said)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status = said.decode(errors="replace")
    text = status.get("message", "") if isinstance(status, dict) else status
    return " ".join(str(text).split())[:_MAX_CHARS]


def _seconds(retry_after: str | None) -> float:
    """Of the header; 1 where it is missing or a date."""
    value = retry_after or ""
    number = value.isascii() and value.isdigit() and len(value) < 10  # noqa: PLR2004
    return min(_MAX_WAIT_SECONDS, float(value)) if number else 1.0
