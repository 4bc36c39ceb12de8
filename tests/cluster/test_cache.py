"""What the rig builds is whole, reused while its inputs stay, and never fills the disk unasked."""

import pathlib
import subprocess
import sys

import pytest

from tests.cluster import cache, state, waiting


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_READY_CACHE", str(tmp_path / "cache"))


def _entry(version: str, *, fails: bool = False, megabytes: int = 0) -> cache.Entry:
    def build(target: pathlib.Path) -> None:
        (target / "file").write_text(version)
        if fails:
            raise cache.RigError("a step failed")

    return cache.Entry(name="thing", inputs={"v": version}, build=build, megabytes=megabytes)


def test_an_entry_is_built_once_for_the_same_inputs() -> None:
    """The second request gives what the first built; other inputs are built anew."""
    first = _entry("1").get()
    (first / "file").write_text("seen")
    assert "seen" == (_entry("1").get() / "file").read_text()
    assert "2" == (_entry("2").get() / "file").read_text()


def test_a_build_that_fails_leaves_no_entry() -> None:
    """What was half made is not taken for whole, and the next try starts empty."""
    with pytest.raises(cache.RigError):
        _entry("1", fails=True).get()
    assert not _entry("1").path.exists()
    assert "1" == (_entry("1").get() / "file").read_text()


def test_old_versions_go_and_the_last_two_stay() -> None:
    """A third version of an entry removes the one that was used longest ago."""
    first, second, third = (_entry(version).get() for version in "123")
    assert [False, True, True] == [path.exists() for path in (first, second, third)]


def test_a_full_disk_is_said_before_anything_is_built() -> None:
    """The message names how much is free, how much is needed, and the way out."""
    with pytest.raises(cache.RigError, match=r"MB free, .* thing needs 999999999 MB: .*_CACHE"):
        _entry("1", megabytes=999_999_999).get()


def test_waiting_tells_what_it_saw_last() -> None:
    """A deadline that passes says what was waited for, the last failure and the evidence."""

    def refuses() -> str:
        raise cache.RigError("connection refused")

    with pytest.raises(cache.RigError, match="for the door; last: connection refused\nthe log"):
        waiting.until("the door", refuses, seconds=0, detail=lambda: "the log")


def test_a_reused_process_id_is_not_taken_for_ours() -> None:
    """A process with the same id and another start time is left alone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = state.Kept(name="etcd", pid=process.pid, started=1.0)
        assert other.process() is None
        process.communicate(b"\n")
