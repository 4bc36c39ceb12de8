"""The command line: exit codes, tables and one-line errors that a person or a script can rely on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.agent.node import machines

_ROOT = Path(__file__).parents[2]


def fabric_ready(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command."""
    return subprocess.run(
        [sys.executable, "-m", "agent", *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def settings(folder: Path, machine: machines.Machine, **more: object) -> str:
    """A settings file for a captured machine, whose rungs below the loopback gate."""
    path = folder / "config.yaml"
    values = {"rungs": ["inventory", "driver"], "host": {"root": str(machine.root)}, **more}
    path.write_text(yaml.safe_dump(values))
    return str(path)


@pytest.fixture
def machine(tmp_path: Path) -> machines.Machine:
    """One port, up."""
    return machines.make(tmp_path / "machine")


def test_check_passes_and_says_that_peers_were_not_asked(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """Exit code 0, a row for each probe, and what this does not say: nothing moves here."""
    said = fabric_ready("check", "--config", settings(tmp_path, machine))
    assert 0 == said.returncode
    assert "None of them moves bytes: RDMA is not proven." in " ".join(said.stdout.split())
    assert "Peers were not asked" in said.stdout
    for word in ("inventory", "devices", "driver", "ports", "mlx5_0/1 InfiniBand LinkUp, 400 Gb/s"):
        assert word in said.stdout


def test_check_fails_with_the_part_and_the_reason(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """Exit code 1."""
    machine.pull()
    said = fabric_ready("check", "--config", settings(tmp_path, machine))
    assert 1 == said.returncode
    assert "PortDown: mlx5_0/1 is DOWN" in said.stdout
    assert "NOT READY" in said.stdout


def test_check_is_unknown_where_a_gating_rung_could_not_look(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """Exit code 2: bytes do not move on a captured tree."""
    rungs = ["inventory", "driver", "loopback"]
    said = fabric_ready("check", "--json", "--config", settings(tmp_path, machine, rungs=rungs))
    found = json.loads(said.stdout)
    assert (2, 2, "unknown", False) == (
        said.returncode, found["exit_code"], found["outcome"], found["peers_asked"],
    )  # fmt: skip
    loopback = next(one for one in found["probes"] if one["probe"] == "loopback.bandwidth")
    assert ("Unreadable", True) == (loopback["verdict"]["reason"], loopback["gates"])


def test_check_is_unknown_where_a_fact_could_not_be_read(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """Blind is not fine, even where everything else passed."""
    (machine.port / "rate").write_bytes(b"\x00")
    said = fabric_ready("check", "--config", settings(tmp_path, machine))
    assert 2 == said.returncode
    assert "UNKNOWN: at least one rung could not be decided." in said.stdout
    assert "ports/1/rate: is not text" in " ".join(said.stdout.split())


def test_a_machine_without_rdma_says_so_plainly(tmp_path: Path) -> None:
    """No device at all is a failure, and never "ok"."""
    (tmp_path / "machine/proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "machine/proc/sys/kernel/osrelease").write_text("6.8.0\n")
    bare = machines.Machine(root=tmp_path / "machine")
    said = fabric_ready("check", "--config", settings(tmp_path, bare))
    assert 1 == said.returncode
    assert "no RDMA device" in said.stdout
    assert "fall back to TCP" in " ".join(said.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "fabric-ready: the following arguments are required: COMMAND"),
        (["chekc"], "invalid choice: 'chekc'"),
        (["check", "--jsn"], "unrecognized arguments: --jsn"),
        (
            ["check", "--config", "/nowhere/config.yaml"],
            "/nowhere/config.yaml: can't be read: No such file",
        ),
    ],
)
def test_usage_errors_are_one_line_and_64(arguments: list[str], words: str) -> None:
    """What is wrong and where help is."""
    said = fabric_ready(*arguments)
    assert (64, "") == (said.returncode, said.stdout)
    assert 1 == len(said.stderr.splitlines())
    assert words in said.stderr


def test_the_agent_outside_a_cluster_says_what_it_needs(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """One line that points to `check`, and exit code 1."""
    said = fabric_ready("agent", "--config", settings(tmp_path, machine))
    assert 1 == said.returncode
    assert "not in a pod" in said.stderr
    assert "fabric-ready check" in said.stderr


def test_settings_are_shown_with_their_origin_and_can_be_read_again(
    tmp_path: Path, machine: machines.Machine
) -> None:
    """What is printed is a valid settings file; each limit says who set it."""
    limits = {"driver.ports": {"require_up": "any"}}
    profile = {"name": "h200", "limits": {"inventory.gpus": {"gpus": 8}}}
    said = fabric_ready(
        "settings", "--config", settings(tmp_path, machine, limits=limits, profile=profile)
    )
    assert 0 == said.returncode
    lines = [line.strip() for line in said.stdout.splitlines()]
    assert 'require_up: "any"  # override' in lines
    assert "gpus: 8  # profile h200" in lines
    assert "rdma_devices: null  # default" in lines
    again = tmp_path / "again.yaml"
    again.write_text(said.stdout)
    assert 0 == fabric_ready("settings", "--config", str(again)).returncode


@pytest.mark.parametrize("command", ["check", "settings", "agent"])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("limits: {loopback.bandwith: {}}", ":2: limits.loopback.bandwith: no probe is called"),
        (
            "limits:\n  driver.ports:\n    link_layer: foo",
            ":4: limits.driver.ports.link_layer: 'foo' is not allowed; allowed here: InfiniBand, Ethernet",
        ),
        (
            "profile: {limits: {loopback.bandwidth: {fail_below_percent: 0}}}",
            ":2: profile.limits.loopback.bandwidth.fail_below_percent: Expected `float` >= 1",
        ),
        (
            "limits: {loopback.bandwidth: {expected_gigabits_per_second: 0}}",
            ":2: limits.loopback.bandwidth.expected_gigabits_per_second: Expected `float` > 0",
        ),
        (
            "limits: {inventory.devices: {rdma_devcies: 2}}",
            ":2: limits.inventory.devices.rdma_devcies: not a limit of inventory.devices; allowed: rdma_d",
        ),
        ("disable: [driver.gidz]", ":2: disable: no probe is called 'driver.gidz'; there are:"),
        ("rungs: [drvier]", ":2: rungs: 'drvier' has no probe; there are: inventory, driver"),
        (
            "disable: [loopback.bandwidth]",
            ": rungs: 'loopback' has no probe; all its probes are in `disable`",
        ),
    ],
)
def test_what_the_settings_ask_for_and_is_not_there_is_one_line(
    tmp_path: Path, command: str, more: str, words: str
) -> None:
    """Every command refuses it, with file, line, key and what is allowed."""
    path = tmp_path / "config.yaml"
    path.write_text(f"log_level: info\n{more}\n")
    said = fabric_ready(command, "--config", str(path))
    assert (64, "") == (said.returncode, said.stdout)
    assert said.stderr.startswith(f"fabric-ready: {path}{words}")
    assert 1 == len(said.stderr.splitlines())


def test_the_version_is_the_packages() -> None:
    """`--version` and nothing else."""
    from agent import VERSION  # noqa: PLC0415

    assert f"fabric-ready {VERSION}\n" == fabric_ready("--version").stdout
