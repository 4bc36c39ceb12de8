"""A small HTTP server for scrapers and probes: GET and HEAD of a few fixed paths, bounded in time and size."""

import contextlib
import http.server
import io
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client

_log = logging.getLogger(__name__)

# When a series began is of no use here, and would double the number of series of every counter.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 16 * 1024
# Scrapers and kubelet's probes need two or three; each costs a thread.
_CONNECTIONS = 32
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Answer:
    """Status code, body and content type."""

    def __init__(self, code: int, body: bytes, kind: str = TEXT) -> None:
        self.code = code
        self.body = body
        self.kind = kind


Page = Callable[[], Answer]


def check(problem: Callable[[], str]) -> Page:
    """A page that is 200 `ok` while `problem` says nothing, and 503 with what it says."""

    def page() -> Answer:
        said = problem()
        return Answer(503 if said else 200, f"{said or 'ok'}\n".encode())

    return page


def metrics(registry: prometheus_client.CollectorRegistry) -> Page:
    """A page for Prometheus."""

    def page() -> Answer:
        text = prometheus_client.generate_latest(registry)
        return Answer(200, text, prometheus_client.CONTENT_TYPE_LATEST)

    return page


class Server(http.server.ThreadingHTTPServer):
    """Serves `pages` by path. Nothing that is sent to it is read beyond the request's head.

    A connection that has not sent a whole request in `request_seconds` is dropped, and so is the
    oldest when there are more than `connections`: whoever opens many and says nothing keeps nobody
    out who asks.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        pages: Mapping[str, Page],
        *,
        request_seconds: float = _REQUEST_SECONDS,
        connections: int = _CONNECTIONS,
    ) -> None:
        """Binds the address.

        Raises:
            OSError: it is taken, or not ours.
        """
        self.pages = pages
        self.request_seconds = request_seconds
        self._most = connections
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the base's look-up of our own name, which takes long where no name server answers."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def start(self) -> None:
        """Serves in a thread until the process ends."""
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread; the oldest connection makes room."""
        with self._lock:
            if len(self._open) >= self._most:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends by it
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._close(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._close(request)

    def _close(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no news; anything else is a bug, said as all others are."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("a page could not be served")


class _Head(io.RawIOBase):
    """What a connection sends, up to a number of bytes and a point in time."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until
        self._left = _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._until - time.monotonic()
        if seconds <= 0 or not self._left:
            # The one error that the base takes as the end of a connection, without an answer.
            raise TimeoutError("the request takes too long or is too long")
        self._connection.settimeout(seconds)
        read = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= read
        return read


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        until = time.monotonic() + self.server.request_seconds
        self.rfile = io.BufferedReader(_Head(self.connection, until))

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            there = ", ".join(sorted(self.server.pages))
            self._answer(Answer(404, f"there are {there}\n".encode()))
        else:
            self._answer(page())

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, answer: Answer) -> None:
        self.connection.settimeout(self.server.request_seconds)
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Silent: a line per scrape says nothing."""
