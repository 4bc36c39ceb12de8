"""`python -m probes`: what the agent runs, for people too.

python -m probes driver.ports                       one probe, its answer as JSON
python -m probes driver.ports --root DIR            on a captured tree
python -m probes --catalogue | --serve [--watch]     for the agent
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from probes import contract, registry, worker

EXIT_USAGE = 64
_EXIT = {
    contract.Outcome.PASS: 0,
    contract.Outcome.SKIP: 0,
    contract.Outcome.FAIL: 1,
    contract.Outcome.UNKNOWN: 2,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def main(arguments: list[str] | None = None) -> int:
    """Entry point. Exit code of a single probe: 0 passed or skipped, 1 failed, 2 unknown, 64 usage."""
    options = _parser().parse_args(arguments)
    # The caller decides when a worker ends: Ctrl-C in a terminal reaches the whole foreground
    # group.
    if options.serve:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = worker.claim_stdout()
    if options.catalogue:
        out.write(msgspec.json.encode(_catalogue()) + b"\n")
        return 0
    if options.serve:
        worker.serve(out, watch=options.watch, root=Path(options.root))
        return 0
    answer = worker.answer(_request(options))
    out.write(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")
    return _EXIT[answer.verdict.outcome] if answer.verdict else _EXIT[contract.Outcome.UNKNOWN]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m probes", description="Runs one probe, or serves the agent.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("probe", nargs="?", help=f"one of: {', '.join(registry.names())}")
    what.add_argument(
        "--catalogue",
        action="store_true",
        help="list all probes with their limits as one JSON line, and what is wrong with "
        "{part of the settings: {probe: {limit: value}}} on standard input",
    )
    what.add_argument("--serve", action="store_true", help="answer requests from standard input")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="with --serve: say which ports changed, and that I live",
    )
    parser.add_argument("--root", default="/", help="prefix of /sys, /proc, /dev (a captured tree)")
    parser.add_argument("--gid-index", type=int, help="RoCE GID index that jobs pin")
    parser.add_argument(
        "--limits", default="{}", metavar="JSON", help="limits that differ from the defaults"
    )
    return parser


def _request(options: argparse.Namespace) -> contract.Request:
    """The request that the command line asks for; a wrong one is a usage error, not a verdict."""
    try:
        limits = msgspec.json.decode(options.limits, type=dict[str, Any])
        registry.limits(options.probe, limits, {})
    except (msgspec.MsgspecError, registry.BadLimits, registry.UnknownProbe) as error:
        print(f"python -m probes: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from error
    except ImportError:
        limits = {}  # the probe is broken on this machine; the verdict will say how
    return contract.Request(
        id=1,
        probe=options.probe,
        root=options.root,
        gid_index=options.gid_index,
        limits=limits,
        origins=dict.fromkeys(limits, "override"),
    )


def _catalogue() -> contract.Catalogue:
    """What there is, and what is wrong with the limits on standard input; none from a terminal."""
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    try:
        limits = msgspec.json.decode(given or b"{}", type=dict[str, dict[str, dict[str, Any]]])
    except msgspec.MsgspecError as error:
        print(f"python -m probes: limits: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from error
    return registry.catalogue(limits)


if __name__ == "__main__":
    raise SystemExit(main())
