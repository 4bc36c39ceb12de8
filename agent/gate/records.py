"""What the gate keeps of a Node and of an agent's Pod: a few short strings, from untrusted JSON.

A Node as JSON is 5 to 15 KB and a cluster has thousands; the rule needs some two hundred bytes of
each. Whatever has the wrong type or form becomes the value that opens nothing.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

CONDITION = "FabricReady"
VERIFIED_BOOT_ID = "fabric-readiness.dev/verified-boot-id"
BLOCKED_RUNG = "fabric-readiness.dev/blocked-rung"
TAINT_EFFECT = "NoSchedule"

_STATUS = re.compile(r"True|False|Unknown")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_BOOT_ID = re.compile(r"[!-~]{1,128}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One Node of the pool, as the rule sees it.

    An empty string stands for absent, ambiguous or malformed. `status` and `reason` are those of
    the condition `FabricReady`. `boot_id` is what the kubelet says, `verified_boot_id` what the
    agent says it has proven. `taint` is the value of our taint, None without one.
    """

    name: str
    uid: str = ""
    boot_id: str = ""
    status: str = ""
    reason: str = ""
    verified_boot_id: str = ""
    blocked_rung: str = ""
    taint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentPod:
    """One of the agent's Pods: on which node it is, and whether its kubelet calls it ready."""

    name: str
    node: str
    ready: bool


def node_view(raw: object, taint_key: str) -> NodeView | None:
    """What the rule needs of a Node's JSON; None when it has no name, which is no Node."""
    node = _mapping(raw)
    metadata, status = _mapping(node.get("metadata")), _mapping(node.get("status"))
    name = _text(metadata.get("name"))
    if not name:
        return None
    annotations = _mapping(metadata.get("annotations"))
    condition = _condition(status, CONDITION)
    return NodeView(
        name=name,
        uid=_text(metadata.get("uid")),
        boot_id=_matching(_BOOT_ID, _mapping(status.get("nodeInfo")).get("bootID")),
        status=_matching(_STATUS, condition.get("status")),
        reason=_matching(_REASON, condition.get("reason")),
        verified_boot_id=_matching(_BOOT_ID, annotations.get(VERIFIED_BOOT_ID)),
        blocked_rung=_matching(_LABEL_VALUE, annotations.get(BLOCKED_RUNG)),
        taint=our_taint(taints_of(node), taint_key),
    )


def agent_pod(raw: object) -> AgentPod | None:
    """What the rule needs of a Pod's JSON. None while it has no node, or no name."""
    pod = _mapping(raw)
    name = _text(_mapping(pod.get("metadata")).get("name"))
    node = _text(_mapping(pod.get("spec")).get("nodeName"))
    if not name or not node:
        return None
    status = _mapping(pod.get("status"))
    ready = status.get("phase") == "Running" and _condition(status, "Ready").get("status") == "True"
    return AgentPod(name=name, node=node, ready=ready)


def has_label(raw: object, label: str) -> bool:
    """Whether an object's JSON carries a label, with whatever value."""
    return label in _mapping(_mapping(_mapping(raw).get("metadata")).get("labels"))


def taints_of(node: Mapping[str, Any]) -> list[Any]:
    """`spec.taints` of a Node's JSON, as it came."""
    taints = _mapping(node.get("spec")).get("taints")
    return taints if isinstance(taints, list) else []


def is_ours(taint: object, key: str) -> bool:
    """Whether a taint is the one that the gate writes: its key and NoSchedule, whatever the value.

    The same key with another effect is somebody else's and stays.
    """
    fields = _mapping(taint)
    return fields.get("key") == key and fields.get("effect") == TAINT_EFFECT


def our_taint(taints: list[Any], key: str) -> str | None:
    """The value of our taint in a list of taints, None when it is not there."""
    return next((_text(taint.get("value")) for taint in taints if is_ours(taint, key)), None)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The one condition of that type; nothing when there is none or more than one."""
    conditions = status.get("conditions")
    if not isinstance(conditions, list):
        return {}
    found = [one for one in map(_mapping, conditions) if one.get("type") == kind]
    return found[0] if len(found) == 1 else {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _matching(form: re.Pattern[str], value: object) -> str:
    text = _text(value)
    return text if form.fullmatch(text) else ""
