"""A pool of nodes for one test."""

from collections.abc import Iterator

import pytest

from tests.agent.gate import objects
from tests.cluster import controlplane


@pytest.fixture
def pool(apiserver: controlplane.ApiServer) -> Iterator[objects.Pool]:
    """Bare nodes on the real API server, under names of their own, gone after the test."""
    with objects.pool(apiserver) as made:
        yield made
