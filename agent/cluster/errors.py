"""What can go wrong with a call to the API server: four kinds, since callers do four different
things about them.

Each is one line for a person, without anything secret.
"""


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
