"""Probes are found by their files, and their limits are checked."""

import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probes
from probes import contract, registry

_GOOD = """
'''A summary
on two lines.

More.
'''
from probes import contract

class Limits(contract.Limits, frozen=True):
    level: int = 3
    names: tuple[str, ...] = ("a",)

def read(host):
    return 1

def judge(facts, limits):
    return contract.Verdict(outcome=contract.Outcome.PASS, reason="Good", message="good")

PROBE = contract.Probe(read=read, judge=judge, limits=Limits, every=60, deadline=5, moves_data=True)
"""


@pytest.fixture
def rung(tmp_path: Path) -> Iterator[Path]:
    """One more rung, `made`, as if its folder lay in the package."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "good.py").write_text(_GOOD)
    probes.__path__.append(str(tmp_path))
    yield folder
    probes.__path__.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("probes.made")]:
        del sys.modules[name]


def test_every_probe_of_the_product_loads() -> None:
    """No probe is broken, each rung of the first ladder has one, and each says what it is for."""
    found = registry.catalogue({})

    assert {} == found.broken
    assert registry.names() == tuple(one.name for one in found.probes)
    assert {"inventory", "driver", "loopback"} <= {one.rung for one in found.probes}
    for one in found.probes:
        assert one.summary.endswith("."), one.name
        assert 0 < one.deadline <= one.every, one.name


def test_only_files_of_rungs_are_probes(rung: Path) -> None:
    """Readers, private modules, and modules beside the rungs are none."""
    (rung / "_shared.py").touch()

    names = registry.names()

    assert [name for name in names if name.startswith("made.")] == ["made.good"]
    assert not [name for name in names if name.startswith("readers.")]
    modules = {one.name for one in pkgutil.iter_modules(probes.__path__) if not one.ispkg}
    assert "registry" in modules
    assert not modules & {name.split(".")[0] for name in names}


def test_one_file_makes_a_probe(rung: Path) -> None:
    """Name and rung come from its place, everything else from the file."""
    assert rung.is_dir()
    assert contract.ProbeInfo(
        name="made.good",
        rung="made",
        every=60,
        deadline=5,
        moves_data=True,
        summary="A summary on two lines.",
    ) == registry.info("made.good")
    assert {"level": 3, "names": ("a",)} == registry.defaults("made.good")


def test_listing_names_imports_nothing() -> None:
    """A probe whose import hangs or crashes must still be listed."""
    code = "import sys; from probes import registry; registry.names(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=20
    )
    assert not [name for name in done.stdout.split() if name.startswith("probes.inventory")]


@pytest.mark.parametrize(
    "name", ["made.none", "none.x", "readers.sysfs", "registry", "made._x", ""]
)
def test_an_unknown_probe_is_said_with_those_that_are_known(rung: Path, name: str) -> None:
    """A typing mistake is answered with the list."""
    assert rung.is_dir()
    with pytest.raises(registry.UnknownProbe, match=r"no probe is called .*made\.good"):
        registry.load(name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import a_library_that_is_not_here", "ModuleNotFoundError: No module named 'a_library"),
        ("def", "SyntaxError: invalid syntax"),
        ("", "AttributeError: module 'probes.made.bad' has no attribute 'PROBE'"),
        ("PROBE = 3", "TypeError: probes.made.bad.PROBE is not a Probe"),
    ],
)
def test_a_broken_probe_takes_no_other_with_it(rung: Path, text: str, problem: str) -> None:
    """It is listed with the reason, and every other probe stays usable."""
    (rung / "bad.py").write_text(text)

    found = registry.catalogue({})

    assert ["made.bad"] == list(found.broken)
    assert found.broken["made.bad"].startswith(problem)
    assert "made.good" in found.defaults
    assert "made.good" in [one.name for one in found.probes]


def test_changed_limits_and_defaults_come_together(rung: Path) -> None:
    """What is not changed stays, and each change knows who made it."""
    assert rung.is_dir()
    found = registry.limits("made.good", {"level": 5}, {"level": "override"})
    assert (5, ("a",)) == (found.level, found.names)
    assert ("override", "default") == (found.origin("level"), found.origin("names"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"levle": 5}, r"^levle: not a limit of made\.good; allowed: level, names$"),
        ({"origins": {"level": "me"}}, r"^origins: not a limit of made\.good; allowed: level, names$"),
        ({"level": "high"}, r"^level: Expected `int`, got `str`$"),
        ({"level": True}, r"^level: Expected `int`, got `bool`$"),
        ({"level": None}, r"^level: Expected `int`, got `null`$"),
        ({"names": ["a", 1]}, r"^names: Expected `str`, got `int`$"),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_refused(rung: Path, changes: dict[str, object], problem: str) -> None:
    """A misspelt limit would leave the gate as open as its default, so it is said instead."""
    assert rung.is_dir()
    with pytest.raises(registry.BadLimits, match=problem):
        registry.limits("made.good", changes, {})


def test_a_probe_without_limits_says_so(rung: Path) -> None:
    """The list of what is allowed may be empty."""
    (rung / "plain.py").write_text(_GOOD.replace("limits=Limits", "limits=contract.Limits"))
    with pytest.raises(registry.BadLimits, match=r"allowed: none$"):
        registry.limits("made.plain", {"level": 1}, {})
    assert {} == registry.defaults("made.plain")
