"""The gate's `/metrics`, `/healthz` and `/readyz`."""

import http.server
from collections.abc import Callable

import prometheus_client

_REQUEST_SECONDS = 5.0

Check = Callable[[], str]
"""Empty while all is well, else one line that says what is not."""


class Server(http.server.ThreadingHTTPServer):
    """Answers GET and HEAD; nothing that is sent to it is read beyond the request's head."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        registry: prometheus_client.CollectorRegistry,
        *,
        healthy: Check,
        ready: Check,
    ) -> None:
        """Binds the address.

        Raises:
            OSError: it is taken, or not ours.
        """
        self.registry = registry
        self.checks = {"/healthz": healthy, "/readyz": ready}
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            text = prometheus_client.generate_latest(self.server.registry)
            self._answer(200, text, prometheus_client.CONTENT_TYPE_LATEST)
        elif check := self.server.checks.get(path):
            problem = check()
            self._answer(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        else:
            self._answer(404, b"there are /metrics, /healthz and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Silent: a line per scrape says nothing."""
