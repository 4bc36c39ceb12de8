"""Runs probes for a caller on the other end of two pipes: requests in, answers out, one JSON object
per line.

The process is expendable. A driver may hang or crash it at any time, so it keeps nothing that the
caller would miss, and every failure that can still be reported becomes an UNKNOWN verdict on the
one probe that was asked for.
"""

import os
import selectors
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from probes import contract, registry
from probes.readers import changes

# How often an idle worker says that it lives, and looks at the ports' state files.
HEARTBEAT_SECONDS = 1.0
# After a link message the RDMA layer may need a moment to follow: look more often for a while.
_BURST_SECONDS = 1.0
_BURST_INTERVAL_SECONDS = 0.05

_requests = msgspec.json.Decoder(contract.Request)


def answer(request: contract.Request) -> contract.Answer:
    """Runs the probe that `request` names. Never raises: what goes wrong is UNKNOWN, with the reason in CamelCase."""
    started = time.monotonic()
    verdict = _verdict(request)
    return contract.Answer(id=request.id, verdict=verdict, seconds=time.monotonic() - started)


def _verdict(request: contract.Request) -> contract.Verdict:
    host = contract.Host(
        root=Path(request.root), gid_index=request.gid_index, inputs=request.inputs
    )
    try:
        probe = registry.load(request.probe)
        limits = registry.limits(request.probe, request.limits, request.origins)
        return probe.judge(probe.read(host), limits)
    except registry.UnknownProbe as error:
        return _unknown("NoSuchProbe", str(error))
    except registry.BadLimits as error:
        return _unknown("BadLimits", f"{request.probe}: {error}")
    except contract.Unreadable as error:
        return _unknown("Unreadable", f"{request.probe} could not read {error}")
    except Exception as error:  # noqa: BLE001  (the boundary: a probe's bug is Unknown for that probe alone)
        traceback.print_exc(file=sys.stderr)
        return _unknown(
            "ProbeCrashed", f"{request.probe}: {type(error).__name__}: {_one_line(str(error))}"
        )


def _unknown(reason: str, message: str) -> contract.Verdict:
    return contract.Verdict(outcome=contract.Outcome.UNKNOWN, reason=reason, message=message)


def _one_line(text: str) -> str:
    return " ".join(text.split())[: contract.MAX_MESSAGE_CHARS]


def claim_stdout() -> BinaryIO:
    """The real standard output, for answers only; what libraries print there from now on goes to standard error."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    sys.stdout.flush()
    os.dup2(2, 1)
    return out


def serve(out: BinaryIO, *, watch: bool, root: Path = Path("/")) -> None:
    """Answers requests from standard input until it ends; its first line says that it is ready.

    With `watch` it also writes, while idle, a sign of life each second, and at once the ports whose
    state changed.
    """
    _write(out, contract.Answer())
    watcher = changes.Watcher(contract.Host(root=root)) if watch else None
    with selectors.DefaultSelector() as ready:
        ready.register(0, selectors.EVENT_READ)
        if watcher is not None and watcher.fileno() >= 0:
            ready.register(watcher, selectors.EVENT_READ)
        burst_until = 0.0
        lines = _Lines()
        while True:
            now = time.monotonic()
            timeout = _BURST_INTERVAL_SECONDS if now < burst_until else HEARTBEAT_SECONDS
            events = [key.fileobj for key, _ in ready.select(timeout if watch else None)]
            if watcher is not None:
                if watcher in events:
                    watcher.drain()
                    burst_until = time.monotonic() + _BURST_SECONDS
                _report(out, watcher.look(), idle=not events)
            if 0 in events:
                for line in lines.read():
                    _write(out, _respond(line))
                if lines.ended:
                    return


def _report(out: BinaryIO, changed: tuple[str, ...], *, idle: bool) -> None:
    if changed or idle:
        _write(out, contract.Answer(changed=changed))


def _respond(line: bytes) -> contract.Answer:
    try:
        request = _requests.decode(line)
    except msgspec.MsgspecError as error:
        return contract.Answer(verdict=_unknown("BadRequest", _one_line(str(error))))
    return answer(request)


def _write(out: BinaryIO, message: contract.Answer) -> None:
    out.write(msgspec.json.encode(message) + b"\n")


class _Lines:
    """Complete lines from standard input, without a buffer that select can't see into."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def read(self) -> Iterator[bytes]:
        data = os.read(0, contract.MAX_LINE_BYTES)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > contract.MAX_LINE_BYTES:
            raise SystemExit("a request longer than a line may be: the caller is broken")
        yield from (line for line in lines if line)
