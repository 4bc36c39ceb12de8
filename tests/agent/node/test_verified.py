"""The file for device plugins comes with the proof of this boot, and never speaks for another."""

import logging
from pathlib import Path

import pytest

from agent.node import verified
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger
from agent.node.verified import Proof, VerifiedFile
from probes.contract import Outcome
from tests.agent.node import rungs
from tests.agent.node.rungs import (
    BOOT,
    FAIL,
    LADDER,
    NAMES,
    PASS,
    SKIP,
    UNKNOWN,
    empty,
    info,
    record,
)
from tests.agent.node.rungs import verified as verified_ledger

# As it will be with the rungs that need a device plugin and a partner.
_FULL = Ladder(
    probes=(*LADDER.probes, info("podview.devices"), info("peer.bandwidth", moves_data=True)),
    rungs=(*LADDER.rungs, "podview", "peer"),
)
_STATIC = Ladder(probes=LADDER.probes, rungs=("inventory", "driver"))
_ONLY_PEERS = Ladder(probes=_FULL.probes, rungs=("peer",))


def _ledger(*outcomes: Outcome) -> Ledger:
    ledger = empty()
    for at, (name, outcome) in enumerate(zip(NAMES, outcomes, strict=False)):
        ledger = record(ledger, name, outcome, 10.0 + at)
    return ledger


@pytest.mark.parametrize(
    ("ladder", "ledger", "due"),
    [
        (LADDER, empty(), False),
        (LADDER, _ledger(PASS, PASS), False),
        (LADDER, _ledger(PASS, PASS, FAIL), False),
        (LADDER, _ledger(PASS, PASS, UNKNOWN), False),
        (LADDER, _ledger(PASS, FAIL, PASS), False),
        (LADDER, _ledger(PASS, PASS, SKIP), False),
        (LADDER, _ledger(PASS, PASS, PASS), True),
        (LADDER, _ledger(SKIP, PASS, PASS), True),
        (_FULL, _ledger(PASS, PASS, PASS), True),
        (_STATIC, _ledger(PASS, PASS), True),
        (_STATIC, _ledger(PASS, PASS, FAIL), True),
        (_ONLY_PEERS, _ledger(PASS, PASS, PASS), False),
    ],
    ids=[
        "nothing ran", "loopback to run", "loopback failed", "loopback unknown", "driver failed",
        "no bytes moved", "all passed", "nothing to list", "podview and peer to run",
        "loopback not asked", "loopback does not gate", "no local rung",
    ],
)  # fmt: skip
def test_it_is_due_when_the_local_rungs_were_proven(
    ladder: Ladder, ledger: Ledger, *, due: bool
) -> None:
    """Those that the settings ask for, and not the ones that wait for a plugin or a partner."""
    assert due == verified.is_due(ledger, ladder)


def test_a_broken_probe_of_a_local_rung_holds_it_back() -> None:
    """What can't be loaded has not passed."""
    broken = Ladder(
        probes=LADDER.probes, rungs=LADDER.rungs, broken=(("driver.firmware", "no module"),)
    )
    assert not verified.is_due(verified_ledger(), broken)


def test_the_file_names_the_boot_and_is_readable_by_everybody(tmp_path: Path) -> None:
    """One line; nothing is left beside it; there is none before the proof."""
    folder = tmp_path / "run"
    file = VerifiedFile(folder, BOOT)
    file.update(_ledger(PASS, PASS), LADDER)
    assert not folder.exists()
    file.update(verified_ledger(), LADDER)
    path = folder / "verified"
    found = verified.read(path)
    assert f"{BOOT} {found.time}\n" == path.read_text()
    assert found.time.endswith("Z")
    assert 0o644 == path.stat().st_mode & 0o777
    assert [path] == list(folder.iterdir())


def test_a_fault_at_run_time_takes_nothing_back(tmp_path: Path) -> None:
    """Nor does a restart of the agent, nor a proof that has to be made again: the boot is what counts."""
    file = VerifiedFile(tmp_path, BOOT)
    file.update(verified_ledger(), LADDER)
    path = tmp_path / "verified"
    before = path.read_text(), path.stat().st_ino
    file.update(record(verified_ledger(), "driver.ports", FAIL, 200.0), LADDER)
    file.update(verified_ledger(), LADDER)
    again = VerifiedFile(tmp_path, BOOT)
    again.update(empty(), LADDER)
    again.update(verified_ledger(), LADDER)
    assert before == (path.read_text(), path.stat().st_ino)


@pytest.mark.parametrize(
    "content",
    [
        b"another 2026-01-01T00:00:00Z\n",
        b"",
        BOOT.encode(),
        f"{BOOT} 2026-01-01T00:00:00Z".encode(),
        f"{BOOT} 2026-01-01T00:00:00Z more\n".encode(),
        f"{BOOT} \xff\n".encode("latin-1"),
        f"{BOOT} {'x' * 300}\n".encode(),
    ],
    ids=["another boot", "empty", "no time", "half", "more", "binary", "long"],
)
def test_what_is_no_proof_of_this_boot_is_removed_at_the_start(
    tmp_path: Path, content: bytes
) -> None:
    """Before anything runs, and it is written anew with the proof."""
    path = tmp_path / "verified"
    path.write_bytes(content)
    file = VerifiedFile(tmp_path, BOOT)
    assert not path.exists()
    file.update(verified_ledger(), LADDER)
    assert BOOT == verified.read(path).boot_id


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Only as much as a proof can have."""
    path = tmp_path / "verified"
    path.symlink_to("/dev/zero")
    with pytest.raises(verified.Unusable, match="is not a boot id and a time"):
        verified.read(path)


def test_what_cannot_be_removed_or_written_is_said_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder stands in the way, then the disk is full; once there is room the file comes."""
    path = tmp_path / "verified"
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        file = VerifiedFile(tmp_path, BOOT)
        file.update(verified_ledger(), LADDER)
        path.rmdir()
        with rungs.little_room():
            file.update(verified_ledger(), LADDER)
    assert [
        f"{path} is removed: can't be read: Is a directory",
        f"{path} can't be removed: Is a directory",
        f"{path} can't be written: Is a directory",
        f"{path} can't be written: File too large",
    ] == caplog.messages
    file.update(verified_ledger(), LADDER)
    assert Proof(boot_id=BOOT, time=verified.read(path).time) == verified.read(path)
