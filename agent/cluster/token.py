"""The agent's service-account token: read again when the kubelet rotates it, and the node that it is bound to."""

import base64
import binascii
import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec

from agent.cluster import errors

_MAX_BYTES = 64 * 1024
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_PARTS = 3  # header, payload, signature


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """The Node that a token is bound to."""

    name: str
    uid: str


class Token:
    """A token file. Each use reads it when its modification time changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._text = ""

    def value(self) -> str:
        """The token as it is now.

        Raises:
            Refused: the file is missing or is no token.
        """
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                if status.st_size > _MAX_BYTES:
                    raise errors.Refused(f"{self._path}: is too long for a token")
                text = self._path.read_bytes().strip()
                # A header with anything else in it would be an error of its own that quotes the token.
                if not _TOKEN.fullmatch(text):
                    raise errors.Refused(f"{self._path}: does not hold a token")
                self._text = text.decode("ascii")
                self._stamp = stamp
        except OSError as error:
            raise errors.Refused(f"{self._path}: can't be read: {error.strerror}") from error
        return self._text

    def forget(self) -> None:
        """Reads the file at the next use whatever its time says."""
        self._stamp = None

    def node(self) -> NodeClaim:
        """The node that the token is bound to. The signature is not checked: it is our own identity
        that is read.

        Raises:
            Refused: the token can't be read or names no node.
        """
        claims = _payload(self.value(), self._path).get("kubernetes.io")
        node = claims.get("node") if isinstance(claims, dict) else None
        if isinstance(node, dict):
            name, uid = node.get("name"), node.get("uid")
            if isinstance(name, str) and isinstance(uid, str) and name and uid:
                return NodeClaim(name=name, uid=uid)
        raise errors.Refused(
            f"{self._path}: names no node: the pod needs a projected service-account token of Kubernetes 1.30 or newer"
        )


def _payload(token: str, path: Path) -> dict[str, Any]:
    """The claims of a JSON web token."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        raise errors.Refused(f"{path}: is not a JSON web token")
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise errors.Refused(f"{path}: is not a JSON web token") from error
    return claims
