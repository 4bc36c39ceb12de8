"""`make docs`: writes docs/settings.md from the settings' own types, and docs/metrics.md from the registries.

A test fails while one of them says something else than the code.
"""

import ast
import itertools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from agent import settings
from agent.gate.metrics import Metrics
from agent.node.metrics import NodeMetrics
from probes import registry

_ROOT = pathlib.Path(__file__).parent.parent
SETTINGS = _ROOT / "docs/settings.md"
METRICS = _ROOT / "docs/metrics.md"
_HEAD = """\
# Settings

One YAML file, `/etc/fabric-readiness/config.yaml` (in the cluster: the ConfigMap
`fabric-readiness`), or `--config FILE`. Everything has a default. An unknown key, a wrong type or
an unreadable file refuses to start with one line that names file, line and key. The environment
gives facts about the node only (`NODE_NAME`, `POD_NAMESPACE`). `fabric-ready settings` prints what
is in force and where each limit came from. The agent reads it when it starts; the gate follows `mode`,
waits and breaker while it runs, and starts anew for the rest.

This page is made from the code by `make docs`.
"""
_LIMITS_HEAD = """
## Limits of probes

Under `profile.limits` (what a kind of node should give) or `limits` (overrides of the profile), by
probe:

```yaml
profile:
  name: h200-roce
  limits:
    inventory.devices: {rdma_devices: 8}
limits:
  loopback.bandwidth: {fail_below_percent: 85}
```
"""


def settings_page() -> str:
    """The text that docs/settings.md must have."""
    lines = [_HEAD]
    for section, path in _sections(settings.Settings, ""):
        lines += [
            "",
            f"## `{path}`" if path else "## Top level",
            "",
            "| key | default | |",
            "|---|---|---|",
        ]
        texts = _field_docs(pathlib.Path(settings.__file__), section.__name__)
        for field in msgspec.structs.fields(section):
            if not _is_section(field.type):
                lines.append(_row(field.name, _default(field), texts.get(field.name, "")))
    lines.append(_LIMITS_HEAD)
    for name in registry.names():
        kind = registry.load(name).limits
        module = sys.modules[kind.__module__]
        texts = _field_docs(pathlib.Path(str(module.__file__)), kind.__name__)
        fields = [field for field in msgspec.structs.fields(kind) if field.name != "origins"]
        if fields:
            lines += [
                f"### `{name}`",
                "",
                registry.info(name).summary,
                "",
                "| limit | default | |",
                "|---|---|---|",
            ]
            lines += [
                _row(field.name, _default(field), texts.get(field.name, "")) for field in fields
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_METRICS_HEAD = """\
# Metrics

The agent serves them at port 9833 of each node (`node.http_port`), the gate at port 9835 of its pods
(`gate.http_port`), both under `/metrics`; the pods carry the usual `prometheus.io/` annotations. Beside
them both serve `/healthz` and `/readyz`, and the agent `/verdicts`: all that it found, as JSON.

A few alerts to begin with:

```yaml
- alert: FabricNotReady
  expr: fabric_ready_condition{type="FabricReady", status="True"} == 0
  for: 10m
- alert: FabricBreakerOpen
  expr: max by (pool) (fabric_gate_held_nodes) > 0
- alert: FabricGateMissing
  expr: (sum(fabric_gate_leading) or vector(0)) != 1 or max(fabric_gate_current) == 0
  for: 5m
```

This page is made from the code by `make docs`.
"""


def metrics_page() -> str:
    """The text that docs/metrics.md must have."""
    lines = [_METRICS_HEAD]
    for title, registry_ in (
        ("The agent, on each node", NodeMetrics().registry),
        ("The gate", Metrics().registry),
    ):
        lines += ["", f"## {title}", "", "| metric | kind | labels | |", "|---|---|---|---|"]
        # The client tells the labels of a metric without samples to nobody.
        known: dict[Any, None] = dict.fromkeys(registry_._names_to_collectors.values())
        for one in known:
            if not hasattr(one, "_labelnames"):
                continue
            suffix = "_total" if one._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in one._labelnames)
            lines.append(
                f"| `{one._name}{suffix}` | {one._type} | {labels} | {one._documentation} |"
            )
    lines += ["", "Both add the `process_` metrics of the Prometheus client."]
    return "\n".join(lines).rstrip() + "\n"


def _sections(kind: type[msgspec.Struct], path: str) -> Iterator[tuple[type[msgspec.Struct], str]]:
    yield kind, path
    for field in msgspec.structs.fields(kind):
        if _is_section(field.type):
            yield from _sections(field.type, f"{path}.{field.name}".lstrip("."))


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    text = msgspec.json.encode(value).decode()
    return f"`{text}`"


def _row(name: str, default: str, text: str) -> str:
    return f"| `{name}` | {default} | {' '.join(text.split())} |".replace("|  |", "| |")


def _field_docs(path: pathlib.Path, name: str) -> dict[str, str]:
    """Field name → the string under it, of one class of a source file."""
    body = next(
        node.body
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    found = {}
    for field, text in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = str(text.value.value)
    return found


if __name__ == "__main__":
    for page, text in ((SETTINGS, settings_page()), (METRICS, metrics_page())):
        page.write_text(text)
        print(f"wrote {page.relative_to(_ROOT)}")
