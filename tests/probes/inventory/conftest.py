"""A small machine for the inventory rung."""

from pathlib import Path

import pytest

from tests.probes.inventory import trees


@pytest.fixture
def tree(tmp_path: Path) -> trees.Tree:
    """A machine with a kernel and nothing else."""
    return trees.Tree(tmp_path / "root")
