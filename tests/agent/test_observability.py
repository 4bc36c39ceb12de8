"""What Prometheus, log collectors and people read keeps to the rules of their fields."""

import io
import json
import logging
import re
import urllib.error
import urllib.request

from prometheus_client import parser

from agent import endpoint, logs, metrics
from agent.gate.metrics import Metrics as GateMetrics
from agent.node import condition
from probes.contract import Outcome, Verdict
from tests.agent.node.rungs import LADDER, PASS, verdict, verified


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
            ("HEAD", "/good"),
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
        server.shutdown()
    assert (200, b"ok\n") == found["GET", "/good"]
    assert (200, b"") == found["HEAD", "/good"]
    assert (503, b"no luck\n") == found["GET", "/bad"]
    assert 404 == found["GET", "/x"][0]
    assert 501 == found["POST", "/good"][0]
