"""The agent's token: followed through rotation, and asked which node it is for."""

import base64
import json
import os
import pathlib

import pytest

from agent.cluster import errors, token


def _write(path: pathlib.Path, text: str, *, modified: float = 1000.0) -> token.Token:
    path.write_text(text)
    os.utime(path, (modified, modified))
    return token.Token(path)


def _jwt(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2lnbmF0dXJl"


def test_rotated_token_is_used(tmp_path: pathlib.Path) -> None:
    """After the kubelet swaps the link, the next use reads the new file."""
    for name, text in (("old", "one\n"), ("new", "two\n")):
        _write(tmp_path / name, text)
    link = tmp_path / "token"
    link.symlink_to("old")
    found = token.Token(link)
    assert "one" == found.value()
    (tmp_path / "swap").symlink_to("new")
    (tmp_path / "swap").rename(link)
    assert "two" == found.value()


def test_unchanged_file_is_not_read_again(tmp_path: pathlib.Path) -> None:
    """The file is read when its time changed, or after `forget`."""
    path = tmp_path / "token"
    found = _write(path, "one")
    assert "one" == found.value()
    path.write_text("two")
    os.utime(path, (1000.0, 1000.0))
    assert "one" == found.value()
    found.forget()
    assert "two" == found.value()


def test_missing_file_names_itself(tmp_path: pathlib.Path) -> None:
    """Without the file the error says which and why."""
    with pytest.raises(errors.Refused, match=r"token: can't be read: No such file"):
        token.Token(tmp_path / "token").value()


@pytest.mark.parametrize("text", ["", "\n", "secret\nX-Header: 1", "secret secret", "sécret"])
def test_nonsense_is_no_token_and_is_not_quoted(tmp_path: pathlib.Path, text: str) -> None:
    """What can't be sent in a header is refused without showing it."""
    with pytest.raises(errors.Refused, match="does not hold a token") as caught:
        _write(tmp_path / "token", text).value()
    assert "secret" not in str(caught.value)


def test_endless_file_is_refused(tmp_path: pathlib.Path) -> None:
    """A file too long for a token is not read."""
    with pytest.raises(errors.Refused, match="too long"):
        _write(tmp_path / "token", "x" * 100_000).value()


def test_node_claim_is_read(tmp_path: pathlib.Path) -> None:
    """A bound token names its node and that node's uid."""
    claims = {"kubernetes.io": {"node": {"name": "gpu-7", "uid": "8c1f"}}}
    found = _write(tmp_path / "token", _jwt(claims))
    assert token.NodeClaim(name="gpu-7", uid="8c1f") == found.node()


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"kubernetes.io": None},
        {"kubernetes.io": {"node": "gpu-7"}},
        {"kubernetes.io": {"node": {"name": "gpu-7"}}},
        {"kubernetes.io": {"node": {"name": "", "uid": "8c1f"}}},
        {"kubernetes.io": {"node": {"name": ["gpu-7"], "uid": "8c1f"}}},
    ],
)
def test_token_without_node_says_what_is_needed(tmp_path: pathlib.Path, claims: object) -> None:
    """An unbound token is refused with the version of Kubernetes that binds them."""
    with pytest.raises(errors.Refused, match=r"names no node: .* 1\.30"):
        _write(tmp_path / "token", _jwt(claims)).node()


@pytest.mark.parametrize("text", ["a.b", "a.b.c.d", "e30.!.c2ln", "e30.e30x.c2ln", _jwt([1])])
def test_token_that_is_no_jwt_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    """Anything that does not decode to claims is refused as such."""
    with pytest.raises(errors.Refused, match="token"):
        _write(tmp_path / "token", text).node()
