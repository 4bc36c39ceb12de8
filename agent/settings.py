"""What an administrator can set: one YAML file, read strictly, explained when wrong.

Precedence: default in code < YAML (a ConfigMap) < environment, which carries facts about the node
only (`NODE_NAME`, `POD_NAMESPACE`). An unknown key, a wrong type or an unreadable file refuses to start
with one line that names key, file and line and says what is
allowed: a misspelt limit that is silently ignored would be a gate left open.

Limits of probes are not typed here. The probes validate them, in their own process, because the
agent knows no hardware.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent import settings_file

DEFAULT_PATH = Path("/etc/fabric-readiness/config.yaml")

ProbeLimits = dict[str, dict[str, Any]]

SettingsError = settings_file.SettingsError
"""Why the settings can't be used, in one line."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings."""


class Profile(_Section, frozen=True):
    """What a kind of node should give: a name, and limits for probes."""

    name: str = ""
    """Shown as the source of an expectation (`profile h200-roce`)."""
    limits: ProbeLimits = {}
    """Probe name → limit → value."""


class HostSettings(_Section, frozen=True):
    """How this machine is looked at."""

    root: str = "/"
    """Prefix of /sys, /proc, /dev, /run."""
    gid_index: int | None = None
    """RoCE GID index that the fleet's jobs pin (NCCL_IB_GID_INDEX). Unset: the probes choose, and say which."""


class HysteresisSettings(_Section, frozen=True):
    """How much evidence changes the mind about a node that was verified.

    A first verification waits for none of it.
    """

    failures: int = 2
    """Performance failures within `failure_window_seconds` that count.

    Mechanical failures act at once.
    """
    failure_window_seconds: float = 300.0
    recovery_passes: int = 3
    """Passes that bring a failed check back."""
    recovery_spacing_seconds: float = 10.0
    """Passes closer together than this count once."""
    unknown_grace_seconds: float = 600.0
    """How long a check that was passing may be Unknown before the condition is."""


class NodeSettings(_Section, frozen=True):
    """The daemon on each node."""

    name: str = ""
    """Node name; from the environment variable NODE_NAME."""
    run_dir: str = "/run/fabric-readiness"
    """On tmpfs, so that a reboot forgets what was proven before it."""
    heartbeat_seconds: float = 600.0
    """Spread by ±20 % with a phase that comes from the node's name."""
    http_address: str = "0.0.0.0"  # noqa: S104  (Prometheus scrapes the pod's address)
    http_port: int = 9833
    serviceaccount_dir: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Where `token` and `ca.crt` are mounted."""
    hysteresis: HysteresisSettings = HysteresisSettings()


class BreakerSettings(_Section, frozen=True):
    """How many nodes that were proven may be closed, in percent of their pool, and never less than one.

    What was never proven in its boot is closed without limit.
    """

    recent_percent: float = 10.0
    """Within `recent_seconds`."""
    recent_seconds: float = 600.0
    total_percent: float = 30.0
    """At any time."""
    absent_percent: float = 5.0
    """When more agents than this are away at once (and at least 2), absence closes nobody."""


class GateSettings(_Section, frozen=True):
    """The one writer of the taint."""

    mode: Literal["observe", "enforce", "nrc"] = "observe"
    """`observe` closes no node and says what it would close; `enforce` closes. Both open what is proven.

    `nrc`: node-readiness-controller writes the taint, and this gate only says what it would do.
    """
    pool_label: str = "fabric-readiness.dev/pool"
    """Nodes that carry this label are gated; its value is the name of their pool."""
    node_selector: str = ""
    """Narrows that, as a label selector (`topology.kubernetes.io/zone in (a, b)`)."""
    namespace: str = "fabric-readiness"
    """Where the agent's pods run; from the environment variable POD_NAMESPACE."""
    agent_selector: str = "app.kubernetes.io/name=fabric-agent"
    """Label selector of the agent's pods."""
    taint_key: str = "readiness.k8s.io/FabricReady"
    absence_grace_seconds: float = 600.0
    """How long a verified node's agent may be missing or not ready.

    A node not verified in this boot gets none.
    """
    stable_seconds: float = 30.0
    """How long a node must look good before its taint goes."""
    breaker: BreakerSettings = BreakerSettings()
    http_address: str = "0.0.0.0"  # noqa: S104
    http_port: int = 9835


class Settings(_Section, frozen=True):
    """Everything."""

    rungs: tuple[str, ...] = ("inventory", "driver", "loopback")
    """The ladder that gates: True needs every one of these."""
    profile: Profile = Profile()
    limits: ProbeLimits = {}
    """Overrides of the profile: probe name → limit → value."""
    disable: tuple[str, ...] = ()
    """Probes that do not run."""
    host: HostSettings = HostSettings()
    node: NodeSettings = NodeSettings()
    gate: GateSettings = GateSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def limits_for(self, probe: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What this installation changes about a probe's limits, and who changed each (`profile NAME`, `override`)."""
        profile = self.profile.limits.get(probe, {})
        override = self.limits.get(probe, {})
        label = f"profile {self.profile.name}" if self.profile.name else "profile"
        origins = dict.fromkeys(profile, label) | dict.fromkeys(override, "override")
        return {**profile, **override}, origins


_LONG = 10**15

_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MAYBE_DNS = re.compile(rf"({_DNS.pattern})?")
# What only the API server can judge in full; this refuses what can't be one.
_SELECTOR = re.compile(r"!?[A-Za-z0-9][A-Za-z0-9 ._/=!,()-]{0,1023}")
_MAYBE_SELECTOR = re.compile(rf"({_SELECTOR.pattern})?")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F:]{2,39}")
_PATH = re.compile(r"/[^\x00]{0,4095}")

# Environment variable → where it goes. Facts of a node or pod, nothing an administrator decides.
_ENVIRONMENT = {
    "NODE_NAME": ("node", "name"),
    "POD_NAMESPACE": ("gate", "namespace"),
}


def load(path: Path | None, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Args:
        path: the YAML file. None reads the default path if it exists, and is all defaults if it
            does not.
        environment: where node facts come from; the process's own by default.

    Raises:
        SettingsError: with the one line to show.
    """
    environment = os.environ if environment is None else environment
    if path is None:
        path = DEFAULT_PATH if DEFAULT_PATH.exists() else None
    document = settings_file.read(path)
    values: dict[str, Any] = document.values
    for variable, (section, key) in _ENVIRONMENT.items():
        place = values.setdefault(section, {}) if environment.get(variable) else None
        # Where the section is not one, msgspec says so.
        if isinstance(place, dict):
            place[key] = environment[variable]
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(document.explain(error, Settings)) from error
    _check_ranges(settings, document)
    return settings


def is_taint_key(text: str) -> bool:
    """Whether a text has the form of a taint's key."""
    return _KEY.fullmatch(text) is not None


def explain(error: SettingsError, path: Path | None) -> str:
    """The error's line, with the file and the line in it where that can be told."""
    if not error.where:
        return str(error)
    path = DEFAULT_PATH if path is None and DEFAULT_PATH.exists() else path
    try:
        return settings_file.read(path).at(error.where, error.text)
    except SettingsError:  # it changed meanwhile
        return str(error)


def _check_ranges(settings: Settings, document: settings_file.Document) -> None:
    """Values that have the right type and still can't be meant."""
    numbers: dict[tuple[str, ...], tuple[float, int, int]] = {
        ("node", "heartbeat_seconds"): (settings.node.heartbeat_seconds, 10, 86_400),
        ("node", "http_port"): (settings.node.http_port, 1, 65_535),
        ("gate", "http_port"): (settings.gate.http_port, 1, 65_535),
        ("gate", "absence_grace_seconds"): (settings.gate.absence_grace_seconds, 0, 86_400),
        ("gate", "stable_seconds"): (settings.gate.stable_seconds, 0, 3_600),
        ("gate", "breaker", "recent_percent"): (settings.gate.breaker.recent_percent, 0, 100),
        ("gate", "breaker", "recent_seconds"): (settings.gate.breaker.recent_seconds, 1, 86_400),
        ("gate", "breaker", "total_percent"): (settings.gate.breaker.total_percent, 0, 100),
        ("gate", "breaker", "absent_percent"): (settings.gate.breaker.absent_percent, 0, 100),
        ("node", "hysteresis", "failures"): (settings.node.hysteresis.failures, 1, 100),
        ("node", "hysteresis", "recovery_passes"): (settings.node.hysteresis.recovery_passes, 1, 100),
        ("node", "hysteresis", "failure_window_seconds"): (
            settings.node.hysteresis.failure_window_seconds, 1, 86_400,
        ),
        ("node", "hysteresis", "recovery_spacing_seconds"): (
            settings.node.hysteresis.recovery_spacing_seconds, 0, 3_600,
        ),
        ("node", "hysteresis", "unknown_grace_seconds"): (
            settings.node.hysteresis.unknown_grace_seconds, 0, 86_400,
        ),
    }  # fmt: skip
    if settings.host.gid_index is not None:
        numbers["host", "gid_index"] = (settings.host.gid_index, 0, 65_535)
    for path, (value, low, high) in numbers.items():
        if not low <= value <= high:
            short = isinstance(value, float) or abs(value) < _LONG
            text = f"{value:g}" if short else "a number of so many digits"
            raise SettingsError(document.at(path, f"{text} is not between {low} and {high}"))
    if not settings.rungs:
        raise SettingsError(document.at(("rungs",), "is empty: a gate with no rung proves nothing"))
    for where, text, form, what in (
        (("gate", "taint_key"), settings.gate.taint_key, _KEY, "taint key"),
        (("gate", "pool_label"), settings.gate.pool_label, _KEY, "label key"),
        (("gate", "namespace"), settings.gate.namespace, _DNS, "namespace"),
        (("gate", "agent_selector"), settings.gate.agent_selector, _SELECTOR, "label selector"),
        (("gate", "node_selector"), settings.gate.node_selector, _MAYBE_SELECTOR, "label selector"),
        (("gate", "http_address"), settings.gate.http_address, _ADDRESS, "IP address"),
        (("node", "http_address"), settings.node.http_address, _ADDRESS, "IP address"),
        (("node", "name"), settings.node.name, _MAYBE_DNS, "node name"),
        (("node", "run_dir"), settings.node.run_dir, _PATH, "absolute path"),
        (("node", "serviceaccount_dir"), settings.node.serviceaccount_dir, _PATH, "absolute path"),
        (("host", "root"), settings.host.root, _PATH, "absolute path"),
    ):
        if not form.fullmatch(text):
            raise SettingsError(document.at(where, f"{text!r} is not a valid {what}"))
    if not Path(settings.host.root).is_dir():
        raise SettingsError(document.at(("host", "root"), f"{settings.host.root!r} is no folder"))
