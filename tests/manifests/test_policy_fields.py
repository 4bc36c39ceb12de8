"""Whatever field a Node has, a policy looks at it: asked of the schema of the API server that runs here."""

import json
import re
from typing import Any

import pytest

from tests.cluster import controlplane
from tests.manifests.conftest import Manifests


def _fields(apiserver: controlplane.ApiServer, kind: str) -> set[str]:
    schemas: Any = json.loads(apiserver.kubectl("get", "--raw", "/openapi/v3/api/v1"))
    return set(schemas["components"]["schemas"][f"io.k8s.api.core.v1.{kind}"]["properties"])


@pytest.mark.parametrize(
    ("policy", "part", "ours"),
    [
        ("fabric-agent-own-node", "status", "conditions"),
        ("fabric-gate-taint-only", "spec", "taints"),
    ],
)
def test_every_field_is_compared(
    apiserver: controlplane.ApiServer, base: Manifests, policy: str, part: str, ours: str
) -> None:
    """A field that a newer Kubernetes brings would be the agent's or the gate's to write until it is named."""
    expressions = json.dumps(base["ValidatingAdmissionPolicy", policy]["spec"])
    same = rf"object\.{part}\.\?(\w+) == oldObject\.{part}\.\?\1\b"
    fields = _fields(apiserver, f"Node{part.title()}")
    assert ours in fields
    assert fields - {ours} == set(re.findall(same, expressions)) & fields
