"""What the agent counts, under `fabric_ready_`, in base units."""

from collections.abc import Collection

import prometheus_client

import agent
from agent.node.condition import TYPE, Condition
from agent.node.ladder import Ladder, rung
from agent.node.ledger import Ledger
from probes.contract import Outcome, Verdict

_STATUSES = ("True", "False", "Unknown")


class NodeMetrics:
    """The node daemon's metrics, in a registry of their own (with those of the process)."""

    def __init__(self) -> None:
        registry = self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        gauge, counter = prometheus_client.Gauge, prometheus_client.Counter
        self._build = gauge(
            "fabric_ready_build_info", "Version of the agent.", ["version"], registry=registry
        )
        self._build.labels(version=agent.VERSION).set(1)
        self._condition = gauge(
            "fabric_ready_condition",
            "The node's condition: 1 for the status that holds, 0 for the others.",
            ["type", "status", "reason"],
            registry=registry,
        )
        self._verified = gauge(
            "fabric_ready_verified",
            "1 once the full ladder passed in this boot.",
            registry=registry,
        )
        self._outcome = gauge(
            "fabric_ready_probe_outcome",
            "What stands for a probe: 1 for the outcome that holds, 0 for the others.",
            ["probe", "rung", "outcome"],
            registry=registry,
        )
        self._warning = gauge(
            "fabric_ready_probe_warning",
            "1 while a probe passes with a warning.",
            ["probe", "part", "warning"],
            registry=registry,
        )
        self._measured = gauge(
            "fabric_ready_measured_bits_per_second",
            "Payload rate that the last measurement of a part gave.",
            ["probe", "part"],
            registry=registry,
        )
        self._expected = gauge(
            "fabric_ready_expected_bits_per_second",
            "Payload rate that a part should give.",
            ["probe", "part"],
            registry=registry,
        )
        self._last_run = gauge(
            "fabric_ready_probe_last_run_timestamp_seconds",
            "When a probe last ended, in seconds since the epoch.",
            ["probe"],
            registry=registry,
        )
        self._seconds = prometheus_client.Histogram(
            "fabric_ready_probe_duration_seconds",
            "How long runs of a probe took.",
            ["probe"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120),
            registry=registry,
        )
        self.runs = counter(
            "fabric_ready_probe_runs",
            "Runs of a probe, by what they found.",
            ["probe", "outcome"],
            registry=registry,
        )
        self.api_writes = counter(
            "fabric_ready_api_writes",
            "Writes to the API server by kind (change, heartbeat, event, object) and result.",
            ["kind", "result"],
            registry=registry,
        )
        self.worker_restarts = counter(
            "fabric_ready_worker_restarts",
            "How often the process of the passive probes was started again.",
            registry=registry,
        )
        self.loop_errors = counter(
            "fabric_ready_loop_errors",
            "Errors of the agent itself that its loop survived.",
            registry=registry,
        )

    def show_run(self, probe: str, verdict: Verdict, seconds: float) -> None:
        """After a run."""
        self._seconds.labels(probe=probe).observe(max(0.0, seconds))
        self._last_run.labels(probe=probe).set_to_current_time()
        self.runs.labels(probe=probe, outcome=verdict.outcome.value).inc()
        _forget(self._warning, probe)
        if verdict.outcome is not Outcome.UNKNOWN:
            here = {part.part for part in verdict.parts}
            _forget(self._measured, probe, keep=here)
            _forget(self._expected, probe, keep=here)
        for part in (verdict, *verdict.parts):
            if part.warning and (part.part or not verdict.parts):
                self._warning.labels(probe=probe, part=part.part, warning=part.warning).set(1)
            for gauge, name in (
                (self._measured, "measured_bits_per_second"),
                (self._expected, "expected_bits_per_second"),
            ):
                if name in part.values:
                    gauge.labels(probe=probe, part=part.part).set(part.values[name])

    def show_state(self, condition: Condition, ledger: Ledger, ladder: Ladder) -> None:
        """The condition and what stands for each probe."""
        self._condition.clear()
        for status in _STATUSES:
            holds = status == condition.status
            reason = condition.reason if holds else ""
            self._condition.labels(type=TYPE, status=status, reason=reason).set(int(holds))
        self._verified.set(int(condition.verified))
        for name in (*(one.name for one in ladder.probes), *(name for name, _ in ladder.broken)):
            standing = ledger.standing(name)
            for outcome in Outcome:
                self._outcome.labels(probe=name, rung=rung(name), outcome=outcome.value).set(
                    int(standing is outcome)
                )


def _forget(
    gauge: prometheus_client.Gauge, probe: str, keep: Collection[str] = frozenset()
) -> None:
    """Removes a probe's series but those of the parts to keep: what is no more must not look as if it were."""
    for metric in gauge.collect():
        for sample in metric.samples:
            if sample.labels["probe"] == probe and sample.labels["part"] not in keep:
                gauge.remove(*sample.labels.values())
