"""A small HTTP server for scrapers and probes: GET and HEAD of a few fixed paths, bounded in time and size."""

import http.server
import threading
from collections.abc import Callable, Mapping

import prometheus_client

# When a series began is of no use here, and would double the number of series of every counter.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_REQUEST_SECONDS = 5.0
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
    """Serves `pages` by path. Nothing that is sent to it is read beyond the request's head."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        """Binds the address.

        Raises:
            OSError: it is taken, or not ours.
        """
        self.pages = pages
        super().__init__(address, _Handler)

    def start(self) -> None:
        """Serves in a thread until the process ends."""
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: Server

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
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Silent: a line per scrape says nothing."""
