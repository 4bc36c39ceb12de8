"""What the gate keeps of a Node, a FabricNode and an agent's Pod: a few short values, from untrusted JSON.

A Node as JSON is 5 to 15 KB and a cluster has thousands; the rule needs some two hundred bytes of
each. Whatever has the wrong type or form becomes the value that opens nothing.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

CONDITION = "FabricReady"
VERIFIED_BOOT_ID = "fabric-readiness.dev/verified-boot-id"
BLOCKED_RUNG = "fabric-readiness.dev/blocked-rung"
TAINT_EFFECT = "NoSchedule"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"

_STATUS = re.compile(r"True|False|Unknown")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_BOOT_ID = re.compile(r"[!-~]{1,128}")
_MAX_NOTE_CHARS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One Node of the pool, as the rule sees it.

    An empty string stands for absent, ambiguous or malformed. `status` and `reason` are those of
    the condition `FabricReady`. `boot_id` is what the kubelet says, `verified_boot_id` what the
    agent says it has proven. `taint` is the value of our taint, None without one, and `taint_since`
    when it was added (seconds since 1970), None where nobody wrote that. `malformed` names what was
    there and could not be taken. `pool` is the value of the pool's label.

    The last three say how to write to exactly this version of the node, and are no part of what it is.
    """

    name: str
    uid: str = ""
    pool: str = ""
    created: float = 0.0
    control_plane: bool = False
    boot_id: str = ""
    status: str = ""
    reason: str = ""
    verified_boot_id: str = ""
    blocked_rung: str = ""
    malformed: str = ""
    taint: str | None = None
    taint_since: float | None = None
    version: str = dataclasses.field(default="", compare=False)
    taint_index: int | None = dataclasses.field(default=None, compare=False)
    taint_count: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FabricNode:
    """The gate's own object about a Node, and what a human wrote into it.

    `owner` is the uid of the Node that it is about. `adopted_boot_id` is the boot in which that node
    was taken over as it was found. `override_until` (seconds since 1970) is set where a human asked,
    with a reason, to open the node until then.
    """

    name: str
    owner: str = ""
    adopted_boot_id: str = ""
    override_until: float | None = None
    override_reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentPod:
    """One of the agent's Pods: on which node it is, and whether its kubelet calls it ready."""

    name: str
    node: str
    ready: bool


def node_view(raw: object, taint_key: str, pool_label: str) -> NodeView | None:
    """What the rule needs of a Node's JSON; None when it has no name, which is no Node."""
    node = _mapping(raw)
    metadata, status = _mapping(node.get("metadata")), _mapping(node.get("status"))
    name = _text(metadata.get("name"))
    if not name:
        return None
    labels = _mapping(metadata.get("labels"))
    taints = taints_of(node)
    index = next((i for i, taint in enumerate(taints) if is_ours(taint, taint_key)), None)
    ours = None if index is None else taints[index]
    form = _Form()
    annotations = _mapping(metadata.get("annotations"))
    condition = _condition(status, CONDITION)
    return NodeView(
        name=name,
        uid=_text(metadata.get("uid")),
        pool=_text(labels.get(pool_label)),
        created=_time(metadata.get("creationTimestamp")) or 0.0,
        control_plane=CONTROL_PLANE in labels,
        boot_id=form.take("bootID", _BOOT_ID, _mapping(status.get("nodeInfo")).get("bootID")),
        status=form.take("status", _STATUS, condition.get("status")),
        reason=form.take("reason", _REASON, condition.get("reason")),
        verified_boot_id=form.take(VERIFIED_BOOT_ID, _BOOT_ID, annotations.get(VERIFIED_BOOT_ID)),
        blocked_rung=form.take(BLOCKED_RUNG, _LABEL_VALUE, annotations.get(BLOCKED_RUNG)),
        malformed=form.malformed,
        taint=None if ours is None else _text(ours.get("value")),
        taint_since=None if ours is None else _time(ours.get("timeAdded")),
        version=_text(metadata.get("resourceVersion")),
        taint_index=index,
        taint_count=len(taints),
    )


def fabric_node(raw: object) -> FabricNode | None:
    """What the gate needs of a FabricNode's JSON; None when it has no name."""
    whole = _mapping(raw)
    metadata, spec = _mapping(whole.get("metadata")), _mapping(whole.get("spec"))
    name = _text(metadata.get("name"))
    if not name:
        return None
    owners = metadata.get("ownerReferences")
    owner = owners[0] if isinstance(owners, list) and len(owners) == 1 else {}
    override = _mapping(spec.get("override"))
    # One line, since it is repeated in logs and events.
    reason = " ".join(_text(override.get("reason")).split())[:_MAX_NOTE_CHARS]
    return FabricNode(
        name=name,
        owner=_text(_mapping(owner).get("uid")),
        adopted_boot_id=_matching(_BOOT_ID, _mapping(spec.get("adopted")).get("bootID")),
        override_until=_time(override.get("until")) if reason else None,
        override_reason=reason,
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


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The one condition of that type; nothing when there is none or more than one."""
    conditions = status.get("conditions")
    if not isinstance(conditions, list):
        return {}
    found = [one for one in map(_mapping, conditions) if one.get("type") == kind]
    return found[0] if len(found) == 1 else {}


class _Form:
    """Takes texts that have the right form, and names the others."""

    def __init__(self) -> None:
        self.malformed = ""

    def take(self, what: str, form: re.Pattern[str], value: object) -> str:
        """The text, empty where it is absent or has another form."""
        text = _matching(form, value)
        if not text and value:
            self.malformed += f"{', ' if self.malformed else ''}{what}"
        return text


def _time(value: object) -> float | None:
    """Seconds since 1970 of a time as the API writes it; None where it is none."""
    try:
        read = dt.datetime.fromisoformat(_text(value))
    except ValueError:
        return None
    return read.timestamp() if read.tzinfo else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _matching(form: re.Pattern[str], value: object) -> str:
    text = _text(value)
    return text if form.fullmatch(text) else ""
