"""The manifests, built by kubectl and installed on the real API server."""

from typing import Any

import pytest
import yaml

from tests.cluster import controlplane, disk

FOLDER = disk.REPOSITORY / "manifests"
Manifests = dict[tuple[str, str], dict[str, Any]]
"""Kind and name → object. Objects of one name in two namespaces have the namespace before the name."""


def built(api: controlplane.ApiServer, folder: str) -> Manifests:
    """What `kubectl kustomize` makes of a folder of manifests/."""
    objects: Manifests = {}
    for found in yaml.safe_load_all(api.kubectl("kustomize", str(FOLDER / folder))):
        name = found["metadata"]["name"]
        if found["kind"] in {"Role", "RoleBinding"}:
            name = f"{found['metadata']['namespace']}/{name}"
        assert (found["kind"], name) not in objects
        objects[found["kind"], name] = found
    return objects


@pytest.fixture(scope="session")
def base(apiserver: controlplane.ApiServer) -> Manifests:
    """The base, installed. There are no controllers, so no pods come of it."""
    apiserver.kubectl("apply", "--kustomize", str(FOLDER / "base"))
    return built(apiserver, "base")


@pytest.fixture(scope="session")
def demo(apiserver: controlplane.ApiServer, base: Manifests) -> Manifests:
    """The demo's overlay, not installed."""
    assert base
    return built(apiserver, "overlays/demo")
