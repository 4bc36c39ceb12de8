"""`fabric-ready`: the command line. Composition roots and nothing else."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from agent import VERSION, check, logs, show_settings, wait
from agent.settings import DEFAULT_PATH, Settings, SettingsError, explain, load

EXIT_USAGE = 64
_LONGEST_SECONDS = 86_400.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config)
    except SettingsError as error:
        print(f"fabric-ready: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.log_level:
        logs.set_up(options.log_level)
    else:
        logs.set_up("warning" if options.command == "check" else settings.log_level)
    try:
        return _run(options, settings)
    except SettingsError as error:
        print(f"fabric-ready: {explain(error, options.config)}", file=sys.stderr)
        return EXIT_USAGE


def _run(options: argparse.Namespace, settings: Settings) -> int:
    """Each command imports what it needs: the gate's libraries cost memory on every node otherwise."""
    if options.command == "check":
        return check.run(settings, as_json=options.json)
    if options.command == "settings":
        return show_settings.run(settings)
    if options.command == "wait":
        return wait.run(settings)
    if options.command == "agent":
        from agent.node import loop as node_loop  # noqa: PLC0415

        return node_loop.run(settings)
    if options.command == "uninstall":
        from agent.uninstall import run as uninstall  # noqa: PLC0415

        return uninstall.run(
            settings,
            everything=options.all,
            dry_run=options.dry_run,
            patience_seconds=options.timeout,
        )
    if options.dry_run:
        from agent.gate import preview  # noqa: PLC0415

        return preview.run(settings, as_json=options.json)
    from agent.gate import loop as gate_loop  # noqa: PLC0415

    return gate_loop.run(settings, lambda: load(options.config))


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= _LONGEST_SECONDS:
        raise ValueError
    return number


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fabric-ready",
        description="Proves that a GPU node's RDMA fabric moves bytes; keeps work off nodes without proof.",
    )
    parser.add_argument("--version", action="version", version=f"fabric-ready {VERSION}")
    common = _Parser(add_help=False)
    common.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings (default: {DEFAULT_PATH} if it exists)",
    )
    common.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="instead of the settings' log_level",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checking = commands.add_parser(
        "check",
        parents=[common],
        help="climb the ladder on this machine, without Kubernetes",
        description="Exit code: 0 every local rung passed, 1 something failed, 2 something is unknown, 64 usage.",
    )
    checking.add_argument("--json", action="store_true", help="for programs")
    commands.add_parser("agent", parents=[common], help="run the node daemon (in a DaemonSet)")
    gating = commands.add_parser(
        "gate",
        parents=[common],
        help="run the gate (in a Deployment), or ask what it would do",
        description="With --dry-run, exit code: 0 no open node would be closed, 1 one would, 2 can't be asked.",
    )
    gating.add_argument(
        "--dry-run",
        action="store_true",
        help="print what mode enforce would do to each node now, over your kubeconfig; writes nothing",
    )
    gating.add_argument("--json", action="store_true", help="with --dry-run: for programs")
    commands.add_parser(
        "wait",
        parents=[common],
        help="wait until this node has proven its fabric (in a device plugin's init container)",
        description="Exit code: 0 proven in this boot, 1 this boot has no id, 143 ended by SIGTERM, 64 usage.",
    )
    removing = commands.add_parser(
        "uninstall",
        parents=[common],
        allow_abbrev=False,  # half of an option must not be a whole removal
        help="take everything of ours off the nodes again, over your kubeconfig",
        description="Stops agents and gate, takes our taints, conditions, label and annotations off every node, and"
        " removes FabricNodes and their CRD. Exit code: 0 done, 1 something is left (and named), 64 usage.",
    )
    removing.add_argument(
        "--all",
        action="store_true",
        help="also what the manifests installed, the namespace included",
    )
    removing.add_argument(
        "--dry-run", action="store_true", help="print what would be removed; writes nothing"
    )
    removing.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for what is being deleted, and for a busy API server (default: 120)",
    )
    commands.add_parser(
        "settings", parents=[common], help="print what is in force and where it came from"
    )
    return parser
