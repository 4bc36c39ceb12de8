"""The agent's calls: what goes out, and which of the four errors comes back, over real TLS."""

import json
import os
import pathlib
import time

import pytest
import trustme

from agent.cluster import api, errors, token
from tests.agent.cluster.conftest import ScriptedServer

BODY = {"metadata": {"uid": "8c1f"}, "status": {"conditions": []}}


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


def test_patch_is_strategic_and_asks_for_little(scripted: ScriptedServer, client: api.Api) -> None:
    """The condition goes out as a strategic merge patch (a merge patch would delete the kubelet's
    conditions), and the answer is asked for as metadata alone.
    """
    client.patch_node_status("gpu-7", BODY)
    [(method, path, headers, body)] = scripted.requests
    assert ("PATCH", "/api/v1/nodes/gpu-7/status") == (method, path)
    assert "application/strategic-merge-patch+json" == headers["Content-Type"]
    assert "as=PartialObjectMetadata" in headers["Accept"]
    assert "Bearer abc.def.ghi" == headers["Authorization"]
    assert json.loads(body) == BODY


def test_event_is_created_in_its_namespace(scripted: ScriptedServer, client: api.Api) -> None:
    """An event is posted as it is."""
    client.create_event("default", {"reason": "FabricReady"})
    [(method, path, headers, body)] = scripted.requests
    assert ("POST", "/api/v1/namespaces/default/events") == (method, path)
    assert "application/json" == headers["Content-Type"]
    assert {"reason": "FabricReady"} == json.loads(body)


def test_connection_is_kept(scripted: ScriptedServer, client: api.Api) -> None:
    """Calls after one another, refused ones too, take one connection."""
    scripted.answers = [(200, {}, b"{}"), (409, {}, _status(409, "no")), (200, {}, b"{}")]
    client.patch_node_status("gpu-7", BODY)
    with pytest.raises(errors.Conflict):
        client.patch_node_status("gpu-7", BODY)
    client.patch_node_status("gpu-7", BODY)
    assert (3, 1) == (len(scripted.requests), scripted.connections)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (301, errors.Unreachable),
        (401, errors.Refused),
        (403, errors.Refused),
        (404, errors.Conflict),
        (409, errors.Conflict),
        (422, errors.Conflict),
        (429, errors.Throttled),
        (500, errors.Unreachable),
        (503, errors.Unreachable),
    ],
)
def test_each_status_is_one_of_four_errors(
    scripted: ScriptedServer, client: api.Api, code: int, error: type[errors.ApiError]
) -> None:
    """The error says request, status and the server's words in one line; nothing is repeated or
    followed.
    """
    elsewhere = {"Location": scripted.url + "/elsewhere", "Retry-After": "7"}
    scripted.answers = [(code, elsewhere, _status(code, "not\nlike this"))]
    with pytest.raises(error) as caught:
        client.patch_node_status("gpu-7", BODY)
    assert f"PATCH /api/v1/nodes/gpu-7/status: {code} not like this" == str(caught.value)
    assert 1 == len(scripted.requests)


@pytest.mark.parametrize(
    ("code", "kind", "gone"),
    [
        (404, "gone", True),
        (409, "conflict", False),
        (410, "gone", True),
        (422, "invalid", False),
    ],
)
def test_conflicts_have_a_kind(
    scripted: ScriptedServer, client: api.Api, code: int, kind: str, *, gone: bool
) -> None:
    """A caller can tell a node that is no more from one that is another."""
    scripted.answers = [(code, {}, b"{}")]
    with pytest.raises(errors.Conflict) as caught:
        client.patch_node_status("gpu-7", BODY)
    assert (kind, gone) == (caught.value.kind, caught.value.gone)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({}, 1.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 1.0),
        ({"Retry-After": "-1"}, 1.0),
        ({"Retry-After": "nan"}, 1.0),
    ],
)
def test_throttling_says_how_long(
    scripted: ScriptedServer, client: api.Api, headers: dict[str, str], seconds: float
) -> None:
    """Retry-After is taken in seconds; anything else is one second."""
    scripted.answers = [(429, headers, b"{}")]
    with pytest.raises(errors.Throttled) as caught:
        client.patch_node_status("gpu-7", BODY)
    assert seconds == caught.value.retry_after_seconds


@pytest.mark.parametrize(
    "said", [b"<html>bad gateway</html>", b"\xff\xfe\x00", b"[1]", b"", b'{"message": 1']
)
def test_any_body_makes_one_short_line(
    scripted: ScriptedServer, client: api.Api, said: bytes
) -> None:
    """What is no Status object is shown as the start of what came, whatever it is."""
    scripted.answers = [(502, {}, said * 1000)]
    with pytest.raises(errors.Unreachable) as caught:
        client.patch_node_status("gpu-7", BODY)
    assert 1 == len(str(caught.value).splitlines())
    assert len(str(caught.value)) < 400


def test_endless_answer_is_cut_off(scripted: ScriptedServer, client: api.Api) -> None:
    """Of an answer without end the start is read, and the next call has a connection of its own."""
    scripted.answers = [
        (500, {"Content-Length": str(10**12)}, b"x" * 200_000),
        (200, {}, b"{}"),
    ]
    with pytest.raises(errors.Unreachable, match="500 xxx"):
        client.patch_node_status("gpu-7", BODY)
    client.patch_node_status("gpu-7", BODY)
    assert 2 == scripted.connections


def test_silent_server_is_unreachable_in_time(scripted: ScriptedServer, client: api.Api) -> None:
    """A server that takes the request and says nothing is given up after the deadline."""
    scripted.before_answer = lambda: time.sleep(2)
    started = time.monotonic()
    with pytest.raises(errors.Unreachable, match="ReadTimeout"):
        client.patch_node_status("gpu-7", BODY)
    assert time.monotonic() - started < 1.5


def test_broken_answer_is_unreachable(scripted: ScriptedServer, client: api.Api) -> None:
    """A connection that ends in mid-answer is an error of transport."""
    scripted.answers = [(500, {"Content-Length": "100", "Connection": "close"}, b"x")]
    with pytest.raises(errors.Unreachable, match="IncompleteRead"):
        client.patch_node_status("gpu-7", BODY)


def test_refused_token_is_read_again(
    scripted: ScriptedServer, client: api.Api, tmp_path: pathlib.Path
) -> None:
    """After 401 the file is read again even where its time stands still."""
    scripted.answers = [(401, {}, b"{}"), (200, {}, b"{}")]
    status = (tmp_path / "token").stat()
    with pytest.raises(errors.Refused) as caught:
        client.patch_node_status("gpu-7", BODY)
    (tmp_path / "token").write_text("new.new.new")
    os.utime(tmp_path / "token", ns=(status.st_atime_ns, status.st_mtime_ns))
    client.patch_node_status("gpu-7", BODY)
    assert "Bearer new.new.new" == scripted.requests[1][2]["Authorization"]
    assert "abc.def.ghi" not in str(caught.value)


def test_stranger_with_the_wrong_authority_gets_nothing(
    scripted: ScriptedServer, client: api.Api
) -> None:
    """A server that our authority did not sign is not spoken to, nor asked again; the token stays
    here.
    """
    scripted.use(trustme.CA())
    with pytest.raises(errors.Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        client.patch_node_status("gpu-7", BODY)
    assert ([], 1) == (scripted.requests, scripted.connections)


def test_rotated_authority_is_followed(
    scripted: ScriptedServer, client: api.Api, tmp_path: pathlib.Path
) -> None:
    """When server and file change to another authority, the next call succeeds."""
    client.patch_node_status("gpu-7", BODY)
    rotated = trustme.CA()
    scripted.use(rotated)
    rotated.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    client.patch_node_status("gpu-7", BODY)
    assert (2, 2) == (len(scripted.requests), scripted.connections)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_unusable_authority_names_its_file(
    client: api.Api, tmp_path: pathlib.Path, text: str | None
) -> None:
    """Without a usable ca.crt no call is made; a file in the moment of its rotation is no crash."""
    (tmp_path / "ca.crt").unlink()
    if text is not None:
        (tmp_path / "ca.crt").write_text(text)
    with pytest.raises(errors.Unreachable, match=r"ca\.crt|SSLError"):
        client.patch_node_status("gpu-7", BODY)


def test_closed_port_is_unreachable(tmp_path: pathlib.Path) -> None:
    """Nothing listens: said at once."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("abc.def.ghi")
    server = api.Server(url="https://127.0.0.1:1", ca_file=tmp_path / "ca.crt")
    with pytest.raises(errors.Unreachable, match="refused"):
        api.Api(server, token.Token(tmp_path / "token")).create_event("default", {})


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_pod_finds_the_server_in_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, host: str, url: str
) -> None:
    """Address from the kubelet's variables, files from the mounted folder."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "token").write_text("abc.def.ghi")
    server, found = api.in_cluster(tmp_path)
    assert api.Server(url=url, ca_file=tmp_path / "ca.crt") == server
    assert "abc.def.ghi" == found.value()


def test_outside_a_pod_the_way_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Without the variables the error names them and the command that needs no cluster."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(errors.Refused, match=r"not in a pod: .* `fabric-ready check`"):
        api.in_cluster(tmp_path)
