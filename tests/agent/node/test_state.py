"""What is kept over a restart is kept whole, for this boot, or not used at all."""

import os
from pathlib import Path

import msgspec
import pytest

from agent.node import condition, state
from agent.node.state import Saved
from tests.agent.node import rungs
from tests.agent.node.rungs import BOOT, LADDER, verified


def saved() -> Saved:
    """Of a verified node."""
    ledger = verified()
    return Saved(
        ledger=ledger,
        condition=condition.decide(ledger, LADDER),
        since="2026-01-01T00:00:00Z",
        profile_hash="p",
    )


def test_what_was_saved_is_loaded_in_the_same_boot(tmp_path: Path) -> None:
    """Whole, and readable by root alone."""
    path = tmp_path / "run/state.json"
    state.save(path, saved())
    assert saved() == state.load(path, BOOT)
    assert 0o600 == path.stat().st_mode & 0o777
    assert [path] == list(path.parent.iterdir())


def test_another_boot_forgets(tmp_path: Path) -> None:
    """Nothing of what was proven before a reboot counts."""
    path = tmp_path / "state.json"
    state.save(path, saved())
    assert None is state.load(path, "another")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        msgspec.json.encode(saved())[:-20],
        msgspec.json.encode(msgspec.structs.replace(saved(), version=99)),
        b"x" * (9 << 20),
    ],
    ids=["empty", "binary", "other", "deep", "half", "version", "huge"],
)
def test_a_file_that_cannot_be_used_is_a_new_start(tmp_path: Path, content: bytes) -> None:
    """It costs a new verification and nothing else."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert None is state.load(path, BOOT)
    assert None is state.load(tmp_path / "missing.json", BOOT)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """The new one is written beside it and put in its place at the end."""
    path = tmp_path / "state.json"
    state.save(path, saved())
    before = path.read_bytes()
    path.with_suffix(".new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        state.save(path, saved())
    assert before == path.read_bytes()


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    """The kernel takes a few bytes and no more."""
    path = tmp_path / "state.json"
    state.save(path, saved())
    with rungs.little_room(), pytest.raises(OSError, match="File too large"):
        state.save(path, saved())
    assert [path] == list(tmp_path.iterdir())
    assert saved() == state.load(path, BOOT)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Only as much as a state can have."""
    path = tmp_path / "state.json"
    path.symlink_to("/dev/zero")
    assert None is state.load(path, BOOT)


def test_what_lies_in_the_way_is_neither_waited_for_nor_written_through(tmp_path: Path) -> None:
    """A pipe in the place of either file hangs nobody, a link leads nowhere."""
    path, victim = tmp_path / "state.json", tmp_path / "victim"
    os.mkfifo(path)
    assert None is state.load(path, BOOT)
    path.unlink()
    victim.write_text("mine")
    path.symlink_to(victim)
    assert None is state.load(path, BOOT)
    (tmp_path / "state.new").symlink_to(victim)
    state.save(path, saved())
    assert "mine" == victim.read_text()
    assert saved() == state.load(path, BOOT)
    os.mkfifo(tmp_path / "state.new")
    state.save(path, saved())
