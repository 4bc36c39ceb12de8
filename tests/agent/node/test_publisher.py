"""What the publisher makes of each answer, over real TLS to a server that says what a test tells it.

What a healthy API server says is tested in `test_daemon.py`; these are the answers that it can't be
brought to give.
"""

import contextlib
import json
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import trustme

from agent.cluster import api, token
from agent.node import publisher
from agent.node.condition import Condition
from agent.node.metrics import NodeMetrics
from agent.node.outbox import Event, Outbox, State
from agent.node.publisher import Publisher
from tests.agent.cluster.conftest import ScriptedServer


def state(reason: str = "FabricVerified", uid: str = "u") -> State:
    """A state with this reason."""
    said = Condition(status="True", reason=reason, message="m", blocked_rung="", verified=True)
    return State(
        condition=said, since="2026-01-01T00:00:00Z", boot_id="b", profile_hash="p", uid=uid
    )


def event(name: str) -> Event:
    """An event."""
    return Event(
        name=name, uid="u", reason="PortDown", message="m", warning=True, at="2026-01-01T00:00:00Z"
    )


class Subject:
    """A publisher, its server, and what it said was delivered."""

    def __init__(self, server: ScriptedServer, client: api.Api) -> None:
        self.server = server
        self.metrics = NodeMetrics()
        self.delivered: list[State] = []
        box = Outbox("node-a", 600, None, time.monotonic())
        self.publisher = Publisher(client, "node-a", box, self.metrics, self.delivered.append)
        self.publisher.start()

    def wrote(self) -> list[tuple[str, str]]:
        """Method and what identifies each request: the condition's reason or the event's name."""
        return [
            (method, _identity(json.loads(body)))
            for method, _, _, body in list(self.server.requests)
        ]

    def count(self, kind: str, result: str) -> float:
        """Writes of that kind with that result, as the metrics count them."""
        labels = {"kind": kind, "result": result}
        found = self.metrics.registry.get_sample_value("fabric_ready_api_writes_total", labels)
        return found or 0.0


def _identity(body: dict[str, dict[str, list[dict[str, str]]]]) -> str:
    if "status" in body:
        return body["status"]["conditions"][0]["reason"]
    return str(body["metadata"]["name"])


@pytest.fixture
def subject(authority: trustme.CA, tmp_path: pathlib.Path) -> Iterator[Subject]:
    """A running publisher whose client waits half a second for an answer."""
    (tmp_path / "token").write_text("abc.def.ghi")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    with ScriptedServer(authority) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        where = api.Server(url=server.url, ca_file=tmp_path / "ca.crt")
        client = api.Api(where, token.Token(tmp_path / "token"), read_seconds=0.5)
        with contextlib.closing(client):
            one = Subject(server, client)
            yield one
            one.publisher.stop()
        server.shutdown()


@pytest.fixture
def authority() -> trustme.CA:
    """Who signs the server's certificate."""
    return trustme.CA()


def until(true: Callable[[], object], seconds: float = 10) -> None:
    """Waits for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (401, "refused"),
        (403, "refused"),
        (404, "conflict"),
        (409, "conflict"),
        (422, "conflict"),
        (500, "unreachable"),
        (503, "unreachable"),
    ],
)
def test_a_write_that_is_not_taken_is_made_again_until_it_is(
    subject: Subject, code: int, result: str
) -> None:
    """Whatever the server says first: the state arrives once it takes it, once, and is counted."""
    subject.server.answers = [(code, {}, b"{}"), (200, {}, b"{}")]
    subject.publisher.want(state())
    until(lambda: subject.delivered)
    time.sleep(0.5)  # long enough for one too many
    assert [state()] == subject.delivered
    assert [("PATCH", "FabricVerified")] * 2 == subject.wrote()
    assert (1, 1) == (subject.count("change", result), subject.count("change", "accepted"))


def test_a_throttled_write_waits_as_long_as_it_was_told(subject: Subject) -> None:
    """429 with Retry-After: 2 is asked again after two seconds, not before."""
    subject.server.answers = [(429, {"Retry-After": "2"}, b"{}"), (200, {}, b"{}")]
    subject.publisher.want(state())
    until(lambda: subject.server.requests)
    asked = time.monotonic()
    until(lambda: subject.delivered)
    assert 1.9 <= time.monotonic() - asked < 4
    assert 1 == subject.count("change", "throttled")


def test_only_the_latest_state_goes_out_after_an_outage(subject: Subject) -> None:
    """What was true in between is history, and events tell it in their order."""
    subject.server.answers = [(503, {}, b"{}")]
    subject.publisher.want(state("A"))
    until(lambda: subject.count("change", "unreachable"))
    for reason in ("B", "C"):
        subject.publisher.want(state(reason))
        subject.publisher.tell(event(reason))
    subject.server.answers = [(200, {}, b"{}")]
    until(lambda: subject.count("event", "accepted") == 2)
    until(lambda: subject.delivered)
    patches = [reason for method, reason in subject.wrote() if method == "PATCH"]
    assert "C" == patches[-1]
    assert "B" not in patches
    assert [state("C")] == subject.delivered
    posts = [name for method, name in subject.wrote() if method == "POST"]
    assert ["B", "C"] == list(dict.fromkeys(posts))


def test_an_answer_that_never_comes_costs_one_timeout(subject: Subject) -> None:
    """A half-open connection is given up, and the state is written on a new one."""
    silent = threading.Event()
    subject.server.before_answer = lambda: silent.wait(3)
    subject.publisher.want(state())
    until(lambda: subject.count("change", "unreachable"))
    subject.server.before_answer = lambda: None
    silent.set()
    until(lambda: subject.delivered)
    assert 2 <= subject.server.connections


def test_an_event_that_got_through_without_an_answer_is_done(subject: Subject) -> None:
    """409 on its repetition means that it is there: the next one follows, and nothing was refused."""
    subject.server.answers = [(409, {}, b"{}"), (201, {}, b"{}")]
    subject.publisher.tell(event("first"))
    subject.publisher.tell(event("second"))
    until(lambda: subject.count("event", "accepted") == 2)
    assert [("POST", "first"), ("POST", "second")] == subject.wrote()


def test_an_event_that_is_invalid_lets_the_others_pass(subject: Subject) -> None:
    """422 is given up at once."""
    subject.server.answers = [(422, {}, b"{}"), (201, {}, b"{}")]
    subject.publisher.tell(event("first"))
    subject.publisher.tell(event("second"))
    until(lambda: subject.count("event", "accepted"))
    assert [("POST", "first"), ("POST", "second")] == subject.wrote()
    assert 1 == subject.count("event", "conflict")


def test_events_that_are_refused_hold_up_no_state(subject: Subject) -> None:
    """The condition is what closes the gate."""
    subject.server.answers = [(403, {}, b"{}")]
    subject.publisher.tell(event("first"))
    until(lambda: subject.count("event", "refused"))
    subject.server.answers = [(200, {}, b"{}")]
    subject.publisher.want(state())
    until(lambda: subject.delivered, seconds=1)


_OTHER_NODE: tuple[int, dict[str, str], bytes] = (
    422,
    {},
    json.dumps({"message": "uid does not match"}).encode(),
)


def test_trouble_is_said_once(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """Not once for each try; a Node that is another one is named as such."""
    subject.server.answers = [_OTHER_NODE, _OTHER_NODE, (200, {}, b"{}")]
    with caplog.at_level(logging.WARNING):
        subject.publisher.want(state())
        until(lambda: subject.delivered)
    assert 1 == len(caplog.records)
    assert "uid does not match; the Node was deleted or made anew" in caplog.text


def test_trouble_that_was_over_is_said_again(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """The same words after a success are news."""
    subject.server.answers = [_OTHER_NODE, (200, {}, b"{}"), _OTHER_NODE]
    with caplog.at_level(logging.WARNING):
        subject.publisher.want(state("A"))
        until(lambda: subject.delivered)
        subject.publisher.want(state("B"))
        until(lambda: subject.count("change", "conflict") == 2)
        until(lambda: len(caplog.records) == 2)


def test_a_stopped_publisher_writes_nothing_more(subject: Subject) -> None:
    """What was still to be said is for the next one."""
    subject.server.answers = [(503, {}, b"{}")]
    subject.publisher.want(state())
    until(lambda: subject.count("change", "unreachable"))
    subject.publisher.stop()
    before = len(subject.server.requests)
    subject.server.answers = [(200, {}, b"{}")]
    subject.publisher.want(msgspec.structs.replace(state(), uid="other"))
    time.sleep(1.5)
    assert before == len(subject.server.requests)
    assert not subject.publisher.alive


def test_refused_for_long_is_no_state_to_rely_on(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's pod is not ready while the API server says something else than the node."""
    monkeypatch.setattr(publisher, "_UNHEARD_SECONDS", 0.5)
    subject.server.answers = [(403, {}, b"{}")]
    subject.publisher.want(state())
    until(subject.publisher.unheard)
    assert "has not taken what this node says" in subject.publisher.unheard()
    subject.server.answers = [(200, {}, b"{}")]
    until(lambda: subject.delivered)
    until(lambda: not subject.publisher.unheard())


def test_an_answer_that_trickles_is_given_up(subject: Subject) -> None:
    """One byte at a time, for ever: the next word is not held back by it."""
    subject.server.trickles = True
    subject.publisher.want(state())
    until(lambda: subject.count("change", "unreachable"))
    subject.server.trickles = False
    until(lambda: subject.delivered)
