"""`make bench`: what the product costs and how fast it is, measured on the emulated cluster against
the budgets.

Writes `build/bench.json`: name → {value, unit, target, peer}, where `peer` is a reference measured
in the same run. Guests emulate a CPU in software, some ten times slower than hardware: times and
CPU shares are upper bounds.
"""

import argparse
import json
import re
import statistics
import sys
import time
import xml.etree.ElementTree as ET

import rich.console
import rich.table

from tests.cluster import cache, demo, image, node, prepare, results, scale
from tests.cluster import cluster as clusters
from tests.cluster.watching import NodeWatch

_BUILD = prepare.DOCKERFILE.parent / "build"
_QUIET_SECONDS = 600
_PULLS = 5
_ROUNDS = 3
_PROBES = "PYTHONPATH=/opt/python:/src python3 -m probes"


def main() -> int:
    """Measures everything; 0 when all was measured, whatever the numbers are."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--quiet-seconds", type=int, default=_QUIET_SECONDS, help="length of the quiet time"
    )
    parser.add_argument("--pulls", type=int, default=_PULLS, help="how often the cable is pulled")
    parser.add_argument("--nodes", type=int, default=scale.NODES, help="simulated for the gate")
    options = parser.parse_args()
    console = rich.console.Console(width=120 if not sys.stdout.isatty() else None)
    try:
        images = prepare.everything()
        found = _of_earlier_runs()  # before the run's network closes: it may have to build
        # Before the guests boot: they would take what is measured.
        found |= scale.measure(options.nodes)
        results.write(found)
        running = clusters.Cluster.start(2, images=images)
    except cache.RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    good = False
    try:
        steps = demo.Demo(running, console)
        steps.install()
        guest = running.nodes["node-a"]
        # Written after each part: the last takes ten minutes, and should cost nothing but itself.
        found["loopback_ratio"] = _loopback(guest)
        found["local_ladder_seconds"] = _ladder(guest)
        results.write(found)
        found["port_down_to_condition_seconds_p95"] = _port_down(running, "node-b", options.pulls)
        results.write(found)
        found |= _of_quiet_time(guest, options.quiet_seconds)
        results.write(found)
        good = True
    except (cache.RigError, demo.DifferenceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        running.stop(keep_logs=not good)
    console.print(results.table(found))
    return 0


def _of_quiet_time(guest: node.Node, seconds: int) -> dict[str, results.Result]:
    """Memory, CPU and API writes of one node's agent while nothing happens."""
    cgroup = _agent_cgroup(guest)
    cpu_before, writes_before = _cpu_seconds(guest, cgroup), _writes(guest)
    started = time.monotonic()
    time.sleep(seconds)
    cpu, writes = _cpu_seconds(guest, cgroup) - cpu_before, _writes(guest) - writes_before
    took = time.monotonic() - started
    return {
        "agent_pss_mib": results.Result(value=_pss_mib(guest, cgroup), unit="MiB", target="<= 64"),
        "agent_cpu_core_percent": results.Result(
            value=100 * cpu / took, unit="% of an emulated core", target="<= 0.5"
        ),
        "quiet_writes_per_hour": results.Result(value=3600 * writes / took, unit="1/h", target="0"),
    }


def _agent_cgroup(guest: node.Node) -> str:
    """The cgroup of the agent's container."""
    mine = "tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q 'fabric-ready agent'"
    find = f"for p in /proc/[0-9]*; do if {mine}; then cat $p/cgroup; fi; done"
    lines = guest.run(find).stdout.split()
    found = next((line.split(":", 2)[2] for line in lines if "kubepods" in line), None)
    if not found:
        raise cache.RigError(f"no agent runs on {guest.name}")
    return f"/sys/fs/cgroup{found}"


def _cpu_seconds(guest: node.Node, cgroup: str) -> float:
    said = guest.run(f"cat {cgroup}/cpu.stat").stdout
    return int(re.findall(r"usage_usec (\d+)", said)[0]) / 1e6


def _pss_mib(guest: node.Node, cgroup: str) -> float:
    """Proportional set size of all processes of the container."""
    said = guest.run(
        f"for p in $(cat {cgroup}/cgroup.procs); do grep ^Pss: /proc/$p/smaps_rollup; done"
    ).stdout
    return sum(int(line.split()[1]) for line in said.splitlines()) / 1024


def _writes(guest: node.Node) -> float:
    """API writes so far that were no heartbeat, by the agent's own count."""
    fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9833/metrics').read().decode())"
    said = guest.run(["python3", "-c", fetch]).stdout
    lines = [line for line in said.splitlines() if line.startswith("fabric_ready_api_writes_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "heartbeat" not in line)


def _port_down(running: clusters.Cluster, name: str, pulls: int) -> results.Result:
    """Cable pulled until the condition is False on the API server, several times; the largest, being the p95 of few."""
    times = []
    for _ in range(pulls):
        with NodeWatch(running.api, name) as watch:
            watch.wait_for("True", seconds=240)
            pulled = time.monotonic()
            running.nodes[name].pull_cable()
            times.append(watch.wait_for("False", seconds=60, since=pulled))
            running.nodes[name].plug_cable()
            watch.wait_for("True", seconds=240)
    return results.Result(value=max(times), unit=f"s (largest of {pulls})", target="<= 2")


def _ladder(guest: node.Node) -> results.Result:
    """All local rungs in one go, as `fabric-ready check`."""
    times = []
    for _ in range(3):
        started = time.monotonic()
        guest.run(
            "PYTHONPATH=/opt/python:/src python3 -m agent check --json", timeout=180, check=False
        )
        times.append(time.monotonic() - started)
    return results.Result(value=statistics.median(times), unit="s (emulated CPU)", target="<= 5")


def _loopback(guest: node.Node) -> results.Result:
    """Our rate against ib_write_bw's, same device, turn by turn."""
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        ours.append(_our_rate(guest))
        theirs.append(_perftest_rate(guest))
    return results.Result(
        value=statistics.median(ours) / statistics.median(theirs),
        unit="of ib_write_bw",
        target=">= 0.98",
        peer=statistics.median(theirs),
    )


def _our_rate(guest: node.Node) -> float:
    limits = '{"software_rdma": "allow", "expected_gigabits_per_second": 0.001}'
    said = guest.run(f"{_PROBES} loopback.bandwidth --limits '{limits}'", timeout=120).stdout
    return float(json.loads(said)["verdict"]["parts"][0]["values"]["measured_bits_per_second"])


def _perftest_rate(guest: node.Node) -> float:
    """Bits per second of ib_write_bw with the same message size, depth and GID, against itself on one device."""
    command = "ib_write_bw --ib-dev rxe0 --gid-index 1 --size 65536 --tx-depth 128 --iters 1500 --report_gbits"
    both = f"{command} > /tmp/server.log 2>&1 & sleep 1; {command} 127.0.0.1"
    said = guest.run(both, timeout=120).stdout
    (line,) = (line.split() for line in said.splitlines() if line.split()[:1] == ["65536"])
    return float(line[3]) * 1e9


def _of_earlier_runs() -> dict[str, results.Result]:
    """What the image build and the last `make test` and `make demo` left behind."""
    built = image.build_image(prepare.DOCKERFILE, prepare.DOCKERFILE.parent)
    found = {"image_mb": results.Result(value=built.megabytes, unit="MB", target="<= 250")}
    with_demo, with_tests = _BUILD / "demo.json", _BUILD / "tests.xml"
    if with_demo.exists():
        seconds = json.loads(with_demo.read_text())["seconds"]
        found["demo_seconds_warm"] = results.Result(
            value=seconds, unit="s (last run)", target="<= 180"
        )
    if with_tests.exists():
        suites = ET.parse(with_tests).getroot().findall("testsuite")  # noqa: S314  (our own file)
        seconds = sum(float(suite.get("time", 0)) for suite in suites)
        found["test_seconds_warm"] = results.Result(
            value=seconds, unit="s (last run)", target="<= 600"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
