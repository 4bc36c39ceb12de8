"""The lines of an answer that comes bit by bit."""

from collections.abc import Iterator

import urllib3

from agent.cluster import errors

_CHUNK_BYTES = 64 * 1024


def of(response: urllib3.BaseHTTPResponse, longest: int) -> Iterator[bytes]:
    """Whole lines that are not blank, without their ends, until the server ends the answer.

    Raises:
        Unreachable: a line has more than `longest` bytes.
        HTTPError: the connection broke or went silent.
    """
    rest = bytearray()
    for chunk in response.stream(_CHUNK_BYTES):
        *whole, last = chunk.split(b"\n")
        for line in whole:
            rest += line
            if rest.strip():
                yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > longest:
            raise errors.Unreachable(f"a line of more than {longest} bytes")
