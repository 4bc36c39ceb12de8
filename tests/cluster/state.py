"""A cluster that its user keeps: what runs, how to reach it, and how to end exactly that.

A kept cluster outlives the process that started it. Its network namespace lives as long as its
programs do, so a wrapper that enters the namespace of one of them is all that `kubectl` and a shell
on a node need.
"""

import dataclasses
import json
import pathlib
import shlex
import shutil
from collections.abc import Iterator

import psutil

from tests.cluster import cache, cluster

_STATE = "state.json"
# Start times are read back from JSON; the kernel counts them in hundredths of a second.
_SAME_START_SECONDS = 0.02
_END_SECONDS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One program of a kept cluster."""

    name: str
    pid: int
    started: float
    """Seconds since the epoch: with the id it names one process for good."""

    def process(self) -> psutil.Process | None:
        """The process, or None when it has ended (whatever else may have its id now)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START_SECONDS
        except psutil.NoSuchProcess:
            return None
        alive = same and process.status() != psutil.STATUS_ZOMBIE
        return process if alive else None


def folder() -> pathlib.Path:
    """Where a kept cluster lies; there is one at most."""
    return cache.folder() / "kept-cluster"


def require_none() -> None:
    """Stops with one line when a cluster is kept already, and clears what is left of a dead one.

    Raises:
        RigError: one runs.
    """
    if any(kept.process() for kept in read()):
        raise cache.RigError("a cluster is running: use it, or end it with `down` first")
    shutil.rmtree(folder(), ignore_errors=True)


def detach(running: cluster.Cluster) -> pathlib.Path:
    """Writes down what runs, and the wrappers `kubectl` and `shell`; gives the folder with them.

    The cluster must have been started with `survives=True`, in `folder()`.
    """
    programs = [
        Kept(name=program.name, pid=pid, started=started)
        for program in running.running
        for pid, started in [program.identity]
    ]
    state = {"programs": [dataclasses.asdict(program) for program in programs]}
    (folder() / _STATE).write_text(json.dumps(state, indent=1))
    etcd = next(program for program in programs if program.name == "etcd")
    enter = f"exec nsenter --net=/proc/{etcd.pid}/ns/net --"
    api = running.api
    kubectl = [str(api.programs / "kubectl"), "--kubeconfig", str(api.admin_kubeconfig)]
    _write_script(folder() / "kubectl", f'{enter} {shlex.join(kubectl)} "$@"')
    cases = "\n".join(
        f'  {one.name}) shift; {enter} {shlex.join(one.ssh())} "$@" ;;'
        for one in running.nodes.values()
    )
    _write_script(
        folder() / "shell",
        f'case "$1" in\n{cases}\n  *) echo "usage: shell NODE [COMMAND]" >&2; exit 2 ;;\nesac',
    )
    return folder()


def read() -> Iterator[Kept]:
    """The programs of the kept cluster, whether or not they still run."""
    path = folder() / _STATE
    if path.exists():
        for program in json.loads(path.read_text())["programs"]:
            yield Kept(**program)


def end() -> int:
    """Ends exactly the programs of the kept cluster, removes its folder, and says how many ran."""
    alive = [process for kept in read() if (process := kept.process())]
    for process in alive:
        process.terminate()
    _gone, stubborn = psutil.wait_procs(alive, timeout=_END_SECONDS)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, timeout=_END_SECONDS)
    shutil.rmtree(folder(), ignore_errors=True)
    return len(alive)


def _write_script(path: pathlib.Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
