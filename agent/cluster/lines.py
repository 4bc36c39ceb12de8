"""The lines of an answer that comes bit by bit."""

import time
from collections.abc import Iterator

import urllib3

from agent.cluster import errors

_CHUNK_BYTES = 64 * 1024


def of(response: urllib3.BaseHTTPResponse, longest: int, until: float) -> Iterator[bytes]:
    """Whole lines that are not blank, without their ends, until the server ends the answer.

    Args:
        response: what answers.
        longest: bytes that a line may have.
        until: `time.monotonic()` at which the server must have ended it, whatever it still sends.

    Raises:
        Unreachable: a line is too long, or the answer lasts too long.
        HTTPError: the connection broke or went silent.
    """
    rest = bytearray()
    for chunk in response.stream(_CHUNK_BYTES):
        if time.monotonic() > until:
            raise errors.Unreachable("an answer that does not end")
        *whole, last = chunk.split(b"\n")
        for line in whole:
            rest += line
            if rest.strip():
                yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > longest:
            raise errors.Unreachable(f"a line of more than {longest} bytes")
