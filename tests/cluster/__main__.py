"""The rig by hand: prepare everything, keep a cluster, look at it, end it.

`python -m tests.cluster prepare | image | up [NODES] | status | down`
"""

import argparse
import sys

from tests.cluster import cache, cluster, prepare, state

_DEFAULT_NODES = 2


def main() -> int:
    """Runs one command; what goes wrong is said in one line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="build everything that a cluster needs")
    commands.add_parser("image", help="build the project's image alone")
    up = commands.add_parser("up", help="start a cluster and leave it running")
    up.add_argument("nodes", nargs="?", type=int, default=_DEFAULT_NODES)
    commands.add_parser("status", help="show what runs")
    commands.add_parser("down", help="end the cluster that was left running")
    chosen = parser.parse_args()
    try:
        if chosen.command == "prepare":
            prepare.everything()
        elif chosen.command == "image":
            print(prepare.agent_image())
        elif chosen.command == "up":
            _up(chosen.nodes)
        elif chosen.command == "status":
            return _status()
        else:
            print(f"ended {state.end()} programs")
    except cache.RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _up(nodes: int) -> None:
    state.require_none()
    images = prepare.everything()
    running = cluster.Cluster.start(nodes, folder=state.folder(), images=images, survives=True)
    folder = state.detach(running)
    print(f"{nodes} nodes Ready after {running.ready_seconds:.0f} s. Try:")
    print(f"  {folder}/kubectl get nodes")
    print(f"  {folder}/shell node-a ibv_devinfo")


def _status() -> int:
    programs = list(state.read())
    if not programs:
        print("no cluster is running")
        return 1
    for kept in programs:
        process = kept.process()
        said = f"running, {process.memory_info().rss / 1e6:.0f} MB" if process else "ended"
        print(f"{kept.name:<25} {kept.pid:>8}  {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
