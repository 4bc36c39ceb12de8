"""Takes what is ours off the Nodes, and leaves everybody else's as it is.

Conditions, label and annotations are merged by name, so taking them off touches nothing else.
`spec.taints` is one atomic list: it is changed by a JSON patch that holds for exactly the version
that was seen, and looked at anew when somebody was faster.
"""

import concurrent.futures
import dataclasses
import random
import time
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any

from agent.cluster import errors
from agent.gate import records, taints
from agent.uninstall import names
from agent.uninstall.server import Server

_THREADS = 8
# Other controllers may be writing the same list all the time.
_ATTEMPTS = 30
_LONGEST_PAUSE_SECONDS = 0.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What of ours is on one version of a Node: positions of taints, and names."""

    name: str
    version: str
    taints: tuple[int, ...] = ()
    conditions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How many Nodes there are, and what is on those that carry something of ours."""

    nodes: int
    found: tuple[Traces, ...]


def traces(node: Mapping[str, Any], keys: Collection[str]) -> Traces | None:
    """What of ours is on a Node as the API server gives it, None where nothing is."""
    metadata = node["metadata"]
    conditions = (node.get("status") or {}).get("conditions") or []
    found = Traces(
        name=metadata["name"],
        version=metadata["resourceVersion"],
        taints=tuple(
            index
            for index, taint in enumerate(records.taints_of(node))
            if any(records.is_ours(taint, key) for key in keys)
        ),
        conditions=tuple(one["type"] for one in conditions if one["type"] in names.CONDITIONS),
        labels=_among(names.LABELS, metadata.get("labels")),
        annotations=_among(names.ANNOTATIONS, metadata.get("annotations")),
    )
    nothing = Traces(name=found.name, version=found.version)
    return None if found == nothing else found


def untaint(found: Traces) -> list[dict[str, Any]]:
    """The JSON patch that takes our taints off; the last one first, since each moves those after it."""
    precondition = {"op": "test", "path": "/metadata/resourceVersion", "value": found.version}
    removals = [
        {"op": "remove", "path": f"/spec/taints/{index}"} for index in reversed(found.taints)
    ]
    return [precondition, *removals]


def clear(found: Traces) -> dict[str, Any]:
    """The strategic merge patch of the status that takes off the rest."""
    metadata = {
        "labels": dict.fromkeys(found.labels),
        "annotations": dict.fromkeys(found.annotations),
    }
    deletions = [{"$patch": "delete", "type": kind} for kind in found.conditions]
    return {"metadata": metadata, "status": {"conditions": deletions}}


class Cleaner:
    """Looks for what is ours on all Nodes but those of another installation, and takes it off."""

    def __init__(self, server: Server, *, keys: Collection[str], spare: Collection[str]) -> None:
        self._server = server
        self._keys = keys
        self._spare = spare

    def look(self) -> Sight:
        """All Nodes, page by page.

        Raises:
            ApiError: any of its kinds.
        """

        def read() -> Sight:
            count, found = 0, []
            for page in self._server.pages(taints.NODES):
                count += len(page)
                seen = (self._ours(node) for node in page)
                found += [one for one in seen if one]
            return Sight(nodes=count, found=tuple(found))

        return self._server.whole(read)

    def clean(self, sight: Sight) -> dict[str, str]:
        """Takes off what was found; Nodes that were not cleaned, with the reason. Writes nothing in a dry run."""
        if self._server.dry_run:
            return {}
        with concurrent.futures.ThreadPoolExecutor(_THREADS, "cleaner") as pool:
            reasons = pool.map(self._clean, sight.found)
            pairs = zip(sight.found, reasons, strict=True)
            return {found.name: why for found, why in pairs if why}

    def _ours(self, node: Mapping[str, Any]) -> Traces | None:
        return None if node["metadata"]["name"] in self._spare else traces(node, self._keys)

    def _clean(self, found: Traces) -> str:
        try:
            # The taints first: they hold for the version that was seen, which the other write changes.
            self._untaint(found)
            if found.conditions or found.labels or found.annotations:
                self._server.strategic_patch(f"{_path(found.name)}/status", clear(found))
        except errors.ApiError as error:
            gone = isinstance(error, errors.Conflict) and error.gone
            return "" if gone else str(error)
        return ""

    def _untaint(self, found: Traces) -> None:
        seen: Traces | None = found
        for attempt in range(1, _ATTEMPTS + 1):
            if seen is None or not seen.taints:
                return
            try:
                self._server.json_patch(_path(found.name), untaint(seen))
            except errors.Conflict as error:
                if error.gone or attempt == _ATTEMPTS:
                    raise
            else:
                return
            time.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS * attempt / _ATTEMPTS))  # noqa: S311  (no secret)
            fresh = self._server.get(_path(found.name))
            seen = self._ours(fresh) if fresh else None


def _among(ours: Collection[str], there: Mapping[str, str] | None) -> tuple[str, ...]:
    return tuple(key for key in ours if key in (there or {}))


def _path(name: str) -> str:
    return f"{taints.NODES}/{urllib.parse.quote(name, safe='')}"
