"""Lists, watches and patches objects as plain JSON, over the official client's configuration.

The official client knows every kind of kubeconfig and credential, and its typed models take far
more memory than what the gate keeps. So it configures and authenticates here, and nothing else.
Answers are bounded in size, and every call in time.
"""

import contextlib
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import urllib3
from kubernetes import client, config

from agent.cluster import errors, lines

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
# The server's own limit on a page is what fits its memory; 500 nodes of 60 KB are 30 MB.
MAX_ANSWER_BYTES = 128 * 1024 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_MESSAGE_BYTES = 64 * 1024
_USER_AGENT = "fabric-readiness-gate"
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_CHANGES = {"PATCH", "PUT", "DELETE"}


class Connection:
    """A connection to one API server. Threads may share it."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        # Each new connection reads the authority's file again, so a rotated one is trusted.
        self._pool = client.ApiClient(configuration).rest_client.pool_manager

    @classmethod
    def find(cls) -> "Connection":
        """Connects as a pod does inside a cluster, else as kubectl does (KUBECONFIG first).

        Raises:
            Refused: neither is usable; the text says what was looked for.
        """
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException as outside:
            try:
                config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            except config.ConfigException as error:
                raise errors.Refused(
                    f"no API server: not in a pod ({outside}), and no kubeconfig ({error})"
                ) from error
        else:
            # The client would take HTTPS_PROXY for the service address, which no proxy reaches.
            configuration.proxy = None
        return cls(configuration)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The JSON at a path."""
        return self._json(self._call("GET", path, query=query))

    def json_patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """Applies a JSON patch."""
        self._send("PATCH", path, operations, "application/json-patch+json")

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Applies a JSON merge patch. Never to a Node: it replaces whole lists."""
        self._send("PATCH", path, body, "application/merge-patch+json")

    def strategic_patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Applies a strategic merge patch: lists that have merge keys are merged, others replaced."""
        self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Creates an object in the collection at a path; what the server made of it."""
        return self._send("POST", path, body, "application/json")

    def replace(self, path: str, body: Mapping[str, Any]) -> None:
        """Replaces an object, if its resourceVersion is still the one in `body`."""
        self._send("PUT", path, body, "application/json")

    def delete(self, path: str) -> None:
        """Deletes an object."""
        self._json(self._call("DELETE", path))

    @contextlib.contextmanager
    def stream(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> Iterator[Iterator[bytes]]:
        """The lines of an answer as they come, until the server ends it.

        Args:
            path: the collection.
            query: `watch=1` and what belongs to it.
            silence_seconds: after this long without a byte the connection is taken for dead, and a
                little later however much comes: the server was to end it before.

        Raises:
            Unreachable: in the iteration too, when the connection breaks or goes silent.
        """
        until = time.monotonic() + silence_seconds + READ_SECONDS
        response = self._call("GET", path, query=query, read_seconds=silence_seconds)
        try:
            yield _lines(response, until)
        finally:
            # Not given back to the pool: what is left of the answer would be the next one's start.
            response.close()

    def _send(self, method: str, path: str, body: object, content_type: str) -> Any:
        encoded = json.dumps(body).encode()
        return self._json(self._call(method, path, body=encoded, content_type=content_type))

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
        read_seconds: float = READ_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._configuration.host}{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        # Nobody reads what a change makes of the object, and a Node is large.
        accept = _METADATA_ONLY if method in _CHANGES else "application/json"
        headers = {"Accept": accept, "User-Agent": _USER_AGENT, **self._credentials()}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, preload_content=False,
                retries=False, timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            raise errors.Unreachable(_transport(error)) from error
        if response.status >= 300:  # noqa: PLR2004  (redirects are not for API servers either)
            try:
                raise _refusal(method, path, response)
            finally:
                response.close()
        return response

    def _credentials(self) -> dict[str, str]:
        """The header that says who we are; a pod's token is read again each minute.

        Raises:
            Unreachable: there is no token right now, as in the moment when it is being replaced.
        """
        try:
            settings: Any = self._configuration.auth_settings()
        except (config.ConfigException, OSError) as error:
            raise errors.Unreachable(f"no credentials right now: {error}") from error
        return {one["key"]: one["value"] for one in settings.values() if one["value"]}

    def _json(self, response: urllib3.BaseHTTPResponse) -> Any:
        try:
            data = response.read(MAX_ANSWER_BYTES + 1)
            if len(data) > MAX_ANSWER_BYTES:
                raise errors.Unreachable(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return json.loads(data)
        except urllib3.exceptions.HTTPError as error:
            raise errors.Unreachable(_transport(error)) from error
        except ValueError as error:
            raise errors.Unreachable(f"an answer that is no JSON: {error}") from error
        finally:
            response.release_conn()


def _refusal(method: str, path: str, response: urllib3.BaseHTTPResponse) -> errors.ApiError:
    """What an answer that is no success means."""
    try:
        said = response.read(MAX_MESSAGE_BYTES)
    except urllib3.exceptions.HTTPError as error:
        said = _transport(error).encode()
    after = response.headers.get("Retry-After")
    return errors.of_answer(f"{method} {path}", response.status, said, after)


def _lines(response: urllib3.BaseHTTPResponse, until: float) -> Iterator[bytes]:
    try:
        yield from lines.of(response, MAX_LINE_BYTES, until)
    except urllib3.exceptions.HTTPError as error:
        raise errors.Unreachable(_transport(error)) from error


def _transport(error: urllib3.exceptions.HTTPError) -> str:
    return f"{type(error).__name__}: {error}"[:300]
