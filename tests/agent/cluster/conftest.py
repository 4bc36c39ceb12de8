"""A server that answers what a test tells it, over real TLS."""

import contextlib
import http.server
import pathlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from agent.cluster import api, token


class ScriptedServer(http.server.ThreadingHTTPServer):
    """Gives one answer after another; the last one again and again. Keeps what was asked.

    A lone answer stands for a load balancer, an overloaded server, or one that breaks: situations
    that a healthy API server can't be brought into.
    """

    daemon_threads = True

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], bytes]] = [(200, {}, b"{}")]
        self.before_answer: Callable[[], object] = lambda: None
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.trickles = False
        self.use(authority)

    def use(self, authority: trustme.CA) -> None:
        """Shows a certificate of that authority to every connection from now on."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Speaks TLS in the connection's own thread; a client that refuses us just goes."""
        self.connections += 1
        with (
            contextlib.suppress(OSError),
            self._tls.wrap_socket(request, server_side=True) as secured,
        ):
            super().finish_request(secured, client_address)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        answers = self.server.answers
        code, headers, text = answers.pop(0) if len(answers) > 1 else answers[0]
        self.server.before_answer()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and not self.server.trickles:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.server.trickles:
                self.wfile.write(b" ")
                time.sleep(0.05)
            self.wfile.write(text)

    def do_POST(self) -> None:
        self.do_PATCH()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Tests read `requests`."""


@pytest.fixture
def authority() -> trustme.CA:
    """Who signs the scripted server's certificate."""
    return trustme.CA()


@pytest.fixture
def scripted(authority: trustme.CA) -> Iterator[ScriptedServer]:
    """A scripted server on loopback."""
    with ScriptedServer(authority) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


@pytest.fixture
def client(
    scripted: ScriptedServer, authority: trustme.CA, tmp_path: pathlib.Path
) -> Iterator[api.Api]:
    """The agent's client of the scripted server; it waits half a second for an answer."""
    (tmp_path / "token").write_text("abc.def.ghi")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    server = api.Server(url=scripted.url, ca_file=tmp_path / "ca.crt")
    with contextlib.closing(
        api.Api(server, token.Token(tmp_path / "token"), read_seconds=0.5)
    ) as made:
        yield made
