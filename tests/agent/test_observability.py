"""What Prometheus, log collectors and people read keeps to the rules of their fields."""

import dataclasses
import io
import json
import logging
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from prometheus_client import parser

from agent import endpoint, logs
from agent.gate.metrics import Metrics as GateMetrics
from agent.node import condition, metrics
from probes.contract import Outcome, Verdict
from tests.agent.node.rungs import LADDER, PASS, record, verdict, verified


def filled() -> metrics.NodeMetrics:
    """Metrics after a verified node's first runs."""
    one = metrics.NodeMetrics()
    ledger = verified()
    one.show_state(condition.decide(ledger, LADDER), ledger, LADDER)
    values = {"measured_bits_per_second": 2e8, "expected_bits_per_second": 5e7}
    part = Verdict(
        outcome=PASS, reason="R", message="m", part="rxe0/1", values=values, warning="Slowish"
    )
    whole = Verdict(outcome=PASS, reason="R", message="m", parts=(part,), warning="Slowish")
    one.show_run("loopback.bandwidth", whole, 2.5)
    one.api_writes.labels(kind="change", result="accepted").inc()
    return one


def text(one: metrics.NodeMetrics) -> str:
    """The page."""
    return endpoint.metrics(one.registry)().body.decode()


def test_metrics_are_named_as_prometheus_wants() -> None:
    """Prefix, help, base units, `_total` on counters and on nothing else, no colons or capitals."""
    for registry, prefix in (
        (filled().registry, "fabric_ready_"),
        (GateMetrics().registry, "fabric_gate_"),
    ):
        for family in parser.text_string_to_metric_families(
            endpoint.metrics(registry)().body.decode()
        ):
            if family.name.startswith(("process_", "python_")):
                continue
            assert family.name.startswith(prefix)
            assert family.documentation.endswith(".")
            assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
            names = {sample.name for sample in family.samples}
            if names:
                counts = all(name.endswith("_total") for name in names)
                assert counts == (family.type == "counter")
            assert not re.search(r"_(ms|millis|kb|mb|gb|gbps|minutes|hours)(_|$)", family.name)


def test_the_condition_and_the_rates_are_there() -> None:
    """One series says 1, the measured and expected rates carry probe and part."""
    page = text(filled())
    assert (
        'fabric_ready_condition{reason="FabricVerified",status="True",type="FabricReady"} 1.0'
        in page
    )
    assert 'fabric_ready_condition{reason="",status="False",type="FabricReady"} 0.0' in page
    assert (
        'fabric_ready_measured_bits_per_second{part="rxe0/1",probe="loopback.bandwidth"} 2e+08'
        in page
    )
    assert (
        'fabric_ready_probe_outcome{outcome="pass",probe="driver.ports",rung="driver"} 1.0' in page
    )


def test_a_warning_that_went_away_is_no_series_any_more() -> None:
    """Neither is a reason that no longer holds."""
    one = filled()
    assert 'warning="Slowish"' in text(one)
    one.show_run("loopback.bandwidth", verdict(Outcome.PASS), 1)
    assert 'warning="Slowish"' not in text(one)


def test_the_rates_of_a_part_go_with_it() -> None:
    """They stay when a run put its measurement off or could not look, and when another probe ran."""
    one = filled()
    rate = 'fabric_ready_measured_bits_per_second{part="rxe0/1"'
    part = Verdict(outcome=PASS, reason="R", message="m", part="rxe0/1")
    one.show_run("loopback.bandwidth", dataclasses.replace(part, part="", parts=(part,)), 1)
    one.show_run("loopback.bandwidth", verdict(Outcome.UNKNOWN), 1)
    one.show_run("driver.ports", verdict(PASS), 1)
    assert rate in text(one)
    other = dataclasses.replace(part, part="rxe1/1")
    one.show_run("loopback.bandwidth", dataclasses.replace(part, part="", parts=(other,)), 1)
    assert rate not in text(one)
    assert "expected_bits_per_second{" not in text(one)


def test_a_probe_that_cannot_be_loaded_is_seen() -> None:
    """It gates, so it has its series like the others."""
    one = metrics.NodeMetrics()
    ladder = dataclasses.replace(LADDER, broken=(("driver.new", "ImportError"),))
    ledger = record(verified(), "driver.new", Outcome.UNKNOWN, 200)
    one.show_state(condition.decide(ledger, ladder), ledger, ladder)
    series = 'fabric_ready_probe_outcome{outcome="pass",probe="driver.new",rung="driver"} 0.0'
    assert series in text(one)


def test_log_lines_are_json_with_their_fields() -> None:
    """Time in UTC, level, message, extra fields, and a traceback as one value."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    log = logging.getLogger("tests.observability")
    log.propagate = False
    log.addHandler(handler)
    log.warning("port %s\nis down", "rxe0/1", extra={"probe": "driver.ports"})
    try:
        int("no")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ("warning", "port rxe0/1\nis down", "driver.ports") == (
        first["level"], first["msg"], first["probe"],
    )  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["ts"])
    assert "ValueError: invalid literal" in second["error"]


def test_the_server_answers_get_and_head_of_its_pages_alone() -> None:
    """Anything else is 404 or 501; a check that fails is 503 with why."""
    pages = {"/good": endpoint.check(lambda: ""), "/bad": endpoint.check(lambda: "no luck")}
    with endpoint.Server(("127.0.0.1", 0), pages) as server:
        server.start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        found = {}
        for method, path in (
            ("GET", "/good"),
            ("GET", "/bad"),
            ("GET", "/x"),
            ("POST", "/good"),
        ):
            request = urllib.request.Request(base + path, method=method)  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                    found[method, path] = (answer.status, answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    found[method, path] = (error.code, error.read())
        # A client of HTTP would not show a body that follows here.
        head = received(connect(server, b"HEAD /good HTTP/1.0\r\n\r\n"))
        server.shutdown()
    assert head.endswith(b"Content-Length: 3\r\n\r\n")
    assert (200, b"ok\n") == found["GET", "/good"]
    assert (503, b"no luck\n") == found["GET", "/bad"]
    assert 404 == found["GET", "/x"][0]
    assert 501 == found["POST", "/good"][0]


def connect(server: endpoint.Server, sent: bytes = b"") -> socket.socket:
    """A connection that has sent something."""
    host, port = server.server_address[:2]
    connection = socket.create_connection((str(host), port), timeout=5)
    connection.sendall(sent)
    return connection


def received(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    data = b""
    with connection:
        try:
            while part := connection.recv(4096):
                data += part
        except ConnectionResetError:
            pass
    return data


def test_a_client_that_is_slow_or_silent_is_dropped() -> None:
    """Also where each byte comes in time and the whole does not: nobody holds a thread for long."""
    with endpoint.Server(("127.0.0.1", 0), {}, request_seconds=0.4) as server:
        server.start()
        assert b"" == received(connect(server, b"GET /good"))
        connection = connect(server, b"GET /good")
        began = time.monotonic()
        while time.monotonic() - began < 4:
            try:
                connection.sendall(b"d")
            except OSError:
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 3
        assert b"" == received(connection)
        server.shutdown()


def test_a_request_that_is_too_long_is_dropped() -> None:
    """Sixteen kilobytes of head are enough for every scraper; more gets no answer."""
    with endpoint.Server(("127.0.0.1", 0), {"/good": endpoint.check(lambda: "")}) as server:
        server.start()
        found = []
        for lines in (12, 24):
            head = b"GET /good HTTP/1.0\r\n" + b"X: %s\r\n" % (b"y" * 1000) * lines
            found.append(received(connect(server, head + b"\r\n"))[-3:])
        server.shutdown()
    assert [b"ok\n", b""] == found


def test_whoever_opens_many_connections_keeps_nobody_out() -> None:
    """Beyond the limit the oldest is closed: silent ones cost no more memory, and the kubelet is answered."""
    pages = {"/good": endpoint.check(lambda: "")}
    ask = b"GET /good HTTP/1.0\r\n\r\n"
    with endpoint.Server(("127.0.0.1", 0), pages, request_seconds=30, connections=4) as server:
        server.start()
        idle = [connect(server) for _ in range(12)]
        for _ in range(3):
            assert received(connect(server, ask)).endswith(b"ok\n")
        assert [b""] * 8 == [received(one) for one in idle[:8]]
        for one in idle[8:]:
            one.close()
        server.shutdown()


def test_a_client_that_goes_away_is_no_news_and_a_broken_page_is() -> None:
    """One log line for a bug of ours, in the form of all lines; the server goes on."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    log = logging.getLogger("agent.endpoint")
    log.addHandler(handler)
    pages = {"/bad": endpoint.check(lambda: str(1 // 0)), "/good": endpoint.check(lambda: "")}
    with endpoint.Server(("127.0.0.1", 0), pages) as server:
        server.start()
        gone = connect(server, b"GET")
        # Closed with a reset, as a scraper that gives up does.
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        gone.close()
        assert b"" == received(connect(server, b"GET /bad HTTP/1.0\r\n\r\n"))
        answer = received(connect(server, b"GET /good HTTP/1.0\r\n\r\n"))
        assert answer.endswith(b"ok\n")
        server.shutdown()
    log.removeHandler(handler)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert ["a page could not be served"] == [line["msg"] for line in lines]
    assert "ZeroDivisionError" in lines[0]["error"]


def test_the_server_serves_where_pods_have_ipv6_alone() -> None:
    """An address with colons is one of IPv6."""
    with endpoint.Server(("::1", 0), {"/good": endpoint.check(lambda: "")}) as server:
        server.start()
        answer = received(connect(server, b"GET /good HTTP/1.0\r\n\r\n"))
        server.shutdown()
    assert answer.endswith(b"ok\n")


_BIND = """
import sys
def forbid(event, arguments):
    if event in {"socket.gethostbyaddr", "socket.gethostbyname", "socket.getnameinfo"}:
        raise SystemExit(f"looked up: {event} {arguments}")
sys.addaudithook(forbid)
from agent import endpoint
endpoint.Server(("0.0.0.0", 0), {}).server_close()
"""


def test_the_server_starts_without_a_name_server() -> None:
    """It looks no name up, not even its own: on a node whose DNS is not there yet that takes half a minute."""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _BIND], cwd=root, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)


_LOG = """
import logging
from agent import logs
logs.set_up("info")
logging.getLogger("a").info("one %s", 1, extra={"probe": "p"})
logging.getLogger("a").debug("two")
logging.getLogger("urllib3").warning("three")
"""


def test_lines_are_json_for_a_collector_and_text_for_a_person() -> None:
    """Standard error that is a terminal gets text; only lines of the level are there, none of the HTTP client's."""
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-c", _LOG]
    piped = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    (line,) = piped.stderr.splitlines()
    assert {"level": "info", "logger": "a", "msg": "one 1", "probe": "p"}.items() <= json.loads(
        line
    ).items()
    ours, theirs = os.openpty()
    subprocess.run(command, cwd=root, stderr=theirs, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        shown = terminal.read1(4096).decode()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \S+ INFO    one 1\s*", shown)
