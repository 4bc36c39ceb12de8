"""Who is adopted, and what becomes of a FabricNode."""

import dataclasses
from typing import Any

import pytest

from agent.cluster import errors
from agent.gate import fabricnodes, records
from agent.gate.fabricnodes import Policy
from agent.gate.records import FabricNode, NodeView
from tests.agent.gate import objects

NODE = NodeView(name="node-a", uid="u1", boot_id="b1", created=100.0)
MINE = FabricNode(name="node-a", owner="u1")
OBSERVING = Policy(enforcing=False, installed_at=500.0)
ENFORCING = Policy(enforcing=True, installed_at=500.0)
JUST_INSTALLED = Policy(enforcing=True, installed_at=100.5)


@pytest.mark.parametrize(
    ("node", "found", "policy", "boot"),
    [
        ({}, None, OBSERVING, "b1"),
        ({}, MINE, OBSERVING, "b1"),
        ({"boot_id": "b2"}, dataclasses.replace(MINE, adopted_boot_id="b1"), OBSERVING, "b2"),
        ({}, None, ENFORCING, "b1"),
        # It registered after the installation, or in the same second.
        ({"created": 501.0}, None, ENFORCING, ""),
        ({"created": 100.5}, None, JUST_INSTALLED, ""),
        # It has been judged before: a reboot does not make it one that was found at work.
        ({}, MINE, ENFORCING, ""),
        ({"boot_id": "b2"}, dataclasses.replace(MINE, adopted_boot_id="b1"), ENFORCING, "b1"),
        # It waits for its proof, or has it, or is no running node.
        ({"taint": "unverified"}, None, ENFORCING, ""),
        ({"taint": "unverified"}, None, OBSERVING, ""),
        ({"verified_boot_id": "b1"}, None, ENFORCING, ""),
        ({"boot_id": ""}, None, OBSERVING, ""),
        # The one before it under the same name.
        ({"uid": "u2"}, dataclasses.replace(MINE, adopted_boot_id="b1"), OBSERVING, "b1"),
        (
            {"uid": "u2", "created": 501.0},
            dataclasses.replace(MINE, adopted_boot_id="b1"),
            ENFORCING,
            "",
        ),
    ],
)
def test_who_is_adopted(
    node: dict[str, Any], found: FabricNode | None, policy: Policy, boot: str
) -> None:
    """Nodes at work when nothing enforced yet, in the boot in which they were; no others."""
    seen = dataclasses.replace(NODE, **node)
    wanted = fabricnodes.wanted(seen, found, policy)
    assert ("node-a", seen.uid, boot) == (wanted.name, wanted.owner, wanted.adopted_boot_id)


def test_what_a_human_wrote_stays_with_the_node_it_was_written_about() -> None:
    """Adoption keeps an override; a node created anew has none."""
    asked = dataclasses.replace(MINE, override_until=9e9, override_reason="drill")
    assert 9e9 == fabricnodes.wanted(NODE, asked, OBSERVING).override_until
    new = dataclasses.replace(NODE, uid="u2")
    assert fabricnodes.wanted(new, asked, OBSERVING).override_until is None


def test_object_of_a_node_on_the_server(pool: objects.Pool) -> None:
    """Created with its owner, adopted beside what a human wrote, read back, and deleted."""
    node = pool.add()
    uid = pool.view(node).uid
    writer = fabricnodes.Writer(pool.connection, pool.namespace)
    writer.create(FabricNode(name=node, owner=uid))
    assert FabricNode(name=node, owner=uid) == records.fabric_node(pool.fabric_node(node))
    with pytest.raises(errors.Conflict):
        writer.create(FabricNode(name=node, owner=uid))
    pool.override(node, "drill", "2030-01-01T00:00:00Z")
    writer.adopt(FabricNode(name=node, owner=uid, adopted_boot_id="b1"))
    assert FabricNode(
        name=node,
        owner=uid,
        adopted_boot_id="b1",
        override_until=1893456000.0,
        override_reason="drill",
    ) == records.fabric_node(pool.fabric_node(node))
    writer.delete(node)
    assert pool.fabric_node(node) is None


@pytest.mark.parametrize(
    "override",
    [
        {"until": "2030-01-01T00:00:00Z"},
        {"reason": " ", "until": "2030-01-01T00:00:00Z"},
        {"reason": "drill"},
        {"reason": "drill", "until": "tomorrow"},
        {"reason": "drill", "until": "2030-01-01T00:00:00"},
        {"reason": "drill", "until": 1893456000},
        "drill",
    ],
)
def test_override_without_reason_or_end_is_none(override: object) -> None:
    """Nobody opens a node for ever, or without saying why."""
    found = records.fabric_node({"metadata": {"name": "a"}, "spec": {"override": override}})
    assert found is not None
    assert found.override_until is None
