"""The agent's few calls to the API server, over urllib3 and its service-account token.

The official client takes 65 MiB once imported, on every node, for two verbs. Calls are bounded in
time and size and never repeated in here: the caller owns the order of things, and so the
repetition.
"""

import dataclasses
import os
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import urllib3

from agent.cluster import errors, lines
from agent.cluster.token import Token

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
_MAX_MESSAGE_BYTES = 64 * 1024
# A FabricNode is 8 KiB at most by design, and comes with its managed fields.
_MAX_LINE_BYTES = 256 * 1024
_UNAUTHORIZED = 401
_NO_SUCCESS = 300  # the API server redirects nobody
_FABRIC_NODES = "/apis/fabric-readiness.dev/v1alpha1/fabricnodes"
# The answer to a patch would be the whole node (60 KB); this asks for its metadata alone.
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the API server is, and the authority that signs its certificate."""

    url: str
    ca_file: Path


def in_cluster(folder: Path) -> tuple[Server, Token]:
    """What the kubelet gives a pod: the server's address, and `token` and `ca.crt` in a folder.

    Raises:
        Refused: this process is not in a pod.
    """
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if not host or not port:
        raise errors.Refused(
            "not in a pod: KUBERNETES_SERVICE_HOST and _PORT are not set (without Kubernetes: `fabric-ready check`)"
        )
    bracketed = f"[{host}]" if ":" in host else host
    url = f"https://{bracketed}:{port}"
    return Server(url=url, ca_file=folder / "ca.crt"), Token(folder / "token")


class Api:
    """A client of one API server. One thread at a time."""

    def __init__(self, server: Server, token: Token, *, read_seconds: float = READ_SECONDS) -> None:
        self._server = server
        self._token = token
        self._timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
        self._pool: urllib3.PoolManager | None = None
        self._ca_stamp: tuple[int, int] | None = None

    @property
    def token(self) -> Token:
        """Who we are."""
        return self._token

    def close(self) -> None:
        """Ends the connection; the next call makes a new one."""
        if self._pool is not None:
            self._pool.clear()

    def patch_node_status(self, name: str, body: Mapping[str, Any]) -> None:
        """Applies a strategic merge patch to a node's status (and, as the API allows there, its
        metadata).

        Raises:
            ApiError: any of its kinds.
        """
        path = f"/api/v1/nodes/{name}/status"
        self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def create_event(self, namespace: str, body: Mapping[str, Any]) -> None:
        """Creates a core/v1 Event.

        Raises:
            ApiError: any of its kinds; Conflict of kind `conflict` where one of that name exists.
        """
        self._send("POST", f"/api/v1/namespaces/{namespace}/events", body, "application/json")

    def patch_fabric_node_status(self, name: str, status: object) -> None:
        """Replaces what a FabricNode says of its node.

        Raises:
            ApiError: any of its kinds; Conflict of kind `gone` while the gate has not made it.
        """
        body = {"status": status}
        self._send("PATCH", f"{_FABRIC_NODES}/{name}/status", body, "application/merge-patch+json")

    def get_fabric_node(self, name: str) -> bytes:
        """A FabricNode as JSON.

        Raises:
            ApiError: any of its kinds; Conflict of kind `gone` where there is none.
        """
        return self._send("GET", f"{_FABRIC_NODES}/{name}")

    def watch_fabric_node(self, name: str, version: str, seconds: float) -> Iterator[bytes]:
        """The events of one FabricNode after a version, as lines of JSON, for that long.

        Raises:
            ApiError: any of its kinds, in the iteration too.
        """
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(round(seconds)),
        }
        path = f"{_FABRIC_NODES}?{urllib.parse.urlencode(query)}"
        # A connection that says nothing for longer than the server keeps it open is dead.
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds + READ_SECONDS)
        try:
            response = self._request("GET", path, timeout=timeout)
            try:
                if response.status >= _NO_SUCCESS:
                    raise self._refusal("GET", path, response, response.read(_MAX_MESSAGE_BYTES))
                until = time.monotonic() + seconds + READ_SECONDS
                yield from lines.of(response, _MAX_LINE_BYTES, until)
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable("GET", path, error) from error

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> bytes:
        """One call and its answer, which is short or of no interest."""
        try:
            response = self._request(method, path, body, content_type, timeout=self._timeout)
            try:
                said = self._read(response)
            finally:
                # What is left of a long answer would be the start of the next one.
                response.release_conn() if response.closed else response.close()
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(method, path, error) from error
        if response.status >= _NO_SUCCESS:
            raise self._refusal(method, path, response, said)
        return said

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """The start of an answer. One that trickles ends: the time limit of a socket is for each piece."""
        until = time.monotonic() + float(self._timeout.read_timeout or READ_SECONDS)
        said = b""
        while len(said) <= _MAX_MESSAGE_BYTES and (piece := response.read1(_MAX_MESSAGE_BYTES)):
            said += piece
            if time.monotonic() > until:
                raise errors.Unreachable("an answer that does not end")
        return said

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        *,
        timeout: urllib3.Timeout,
    ) -> urllib3.BaseHTTPResponse:
        headers = {
            "Accept": _METADATA_ONLY if method == "PATCH" else "application/json",
            "Authorization": f"Bearer {self._token.value()}",
            "User-Agent": "fabric-readiness-agent",
        }
        if body is not None:
            headers["Content-Type"] = content_type
        return self._connections().request(
            method,
            self._server.url + path,
            body=None if body is None else msgspec.json.encode(body),
            headers=headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=False,
        )

    def _unreachable(
        self, method: str, path: str, error: urllib3.exceptions.HTTPError
    ) -> errors.Unreachable:
        self._ca_stamp = None  # the authority may have been rotated: look at the file again
        return errors.Unreachable(f"{method} {path}: {type(error).__name__}: {error}"[:500])

    def _refusal(
        self, method: str, path: str, response: urllib3.BaseHTTPResponse, said: bytes
    ) -> errors.ApiError:
        if response.status == _UNAUTHORIZED:
            self._token.forget()
        after = response.headers.get("Retry-After")
        return errors.of_answer(f"{method} {path}", response.status, said, after)

    def _connections(self) -> urllib3.PoolManager:
        """Kept alive between calls; made anew when the authority's file changed."""
        try:
            status = self._server.ca_file.stat()
        except OSError as error:
            raise errors.Unreachable(f"{self._server.ca_file}: {error.strerror}") from error
        stamp = (status.st_mtime_ns, status.st_ino)
        if self._pool is None or stamp != self._ca_stamp:
            self.close()
            self._pool = urllib3.PoolManager(
                num_pools=1,
                maxsize=1,
                ca_certs=str(self._server.ca_file),
                cert_reqs="CERT_REQUIRED",
            )
            self._ca_stamp = stamp
        return self._pool
