"""The documents say what the code does."""

import ast
import pathlib
import re

from tests import documents

_ROOT = pathlib.Path(__file__).parent.parent
# Reasons are CamelCase; a few other words in the code are too.
_REASON = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+")
_NO_REASONS = {"InfiniBand", "OutSegs", "FabricReady", "NoSchedule", "FabricNode"}


def test_settings_page_is_the_codes() -> None:
    """docs/settings.md is what `make docs` writes."""
    assert documents.settings_page() == documents.SETTINGS.read_text(), "run `make docs`"


def test_metrics_page_is_the_codes() -> None:
    """docs/metrics.md is what `make docs` writes."""
    assert documents.metrics_page() == documents.METRICS.read_text(), "run `make docs`"


def test_every_reason_is_documented() -> None:
    """Each reason that a probe or the agent can give has a row in docs/reasons.md."""
    page = (_ROOT / "docs/reasons.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    missing = {
        f"{path.relative_to(_ROOT)}: {reason}"
        for folder in ("probes", "agent/node", "agent/gate")
        for path in (_ROOT / folder).rglob("*.py")
        for reason in _reasons(path)
        if reason not in documented
    }
    assert set() == missing


def test_the_failure_table_names_tests_that_there_are() -> None:
    """manifests/README.md says for each situation which test shows it."""
    page = (_ROOT / "manifests/README.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]*`[^|]*) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 15
    sources = "".join(path.read_text() for path in (_ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        for name in re.findall(r"`(\w+)`", row):
            assert f"def test_{name}(" in sources, name


def _reasons(path: pathlib.Path) -> set[str]:
    """CamelCase string literals of a module, docstrings aside."""
    tree = ast.parse(path.read_text())
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in found if _REASON.fullmatch(text)} - _NO_REASONS
