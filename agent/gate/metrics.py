"""What the gate counts, under `fabric_gate_`."""

import prometheus_client

from agent.gate.decision import Cause


class Metrics:
    """The gate's metrics, in a registry of their own (with those of the process)."""

    def __init__(self) -> None:
        registry = self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        self.nodes = prometheus_client.Gauge(
            "fabric_gate_nodes",
            "Nodes of the pool, by what the rule says of them; ready, adopted, overridden and held are open.",
            ["cause"],
            registry=registry,
        )
        self.tainted = prometheus_client.Gauge(
            "fabric_gate_tainted_nodes",
            "Nodes of the pool that carry the gate's taint.",
            registry=registry,
        )
        self.writes = prometheus_client.Counter(
            "fabric_gate_taint_writes",
            "Attempts to write (taint) or take off (untaint) the taint, by what became of them.",
            ["action", "outcome"],
            registry=registry,
        )
        self.withheld = prometheus_client.Counter(
            "fabric_gate_withheld_writes",
            "Writes that were not done since the mode is not enforce.",
            ["action"],
            registry=registry,
        )
        self.write_delay = prometheus_client.Histogram(
            "fabric_gate_taint_delay_seconds",
            "From seeing the change that closes or opens a node to the taint written.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self.current = prometheus_client.Gauge(
            "fabric_gate_current",
            "1 while all watches see, 0 while the gate is blind and changes nothing.",
            registry=registry,
        )
        self.leading = prometheus_client.Gauge(
            "fabric_gate_leading",
            "1 in the replica that decides and writes.",
            registry=registry,
        )
        self.held = prometheus_client.Gauge(
            "fabric_gate_held_nodes",
            "Nodes that stay open since too many would be closed at once; above 0 the breaker is open.",
            ["pool"],
            registry=registry,
        )
        self.closed = prometheus_client.Gauge(
            "fabric_gate_closed_nodes",
            "Nodes that were proven in their boot and are closed: what the breaker counts.",
            ["pool"],
            registry=registry,
        )
        self.object_writes = prometheus_client.Counter(
            "fabric_gate_fabricnode_writes",
            "Attempts to create, adopt or delete a FabricNode, by what became of them.",
            ["action", "outcome"],
            registry=registry,
        )
        self.events = prometheus_client.Counter(
            "fabric_gate_events",
            "Events for people, by what became of them; dropped are those above the pace.",
            ["outcome"],
            registry=registry,
        )
        self.watch_breaks = prometheus_client.Counter(
            "fabric_gate_watch_breaks",
            "Watches that broke, by collection and cause.",
            ["watch", "cause"],
            registry=registry,
        )
        self.enforcing = prometheus_client.Gauge(
            "fabric_gate_enforcing",
            "1 in mode enforce, 0 in any other.",
            registry=registry,
        )
        self.writes_taints = prometheus_client.Gauge(
            "fabric_gate_writes_taints",
            "1 while this gate writes the taint, 0 in mode nrc, where another controller does.",
            registry=registry,
        )
        self.settings_refused = prometheus_client.Gauge(
            "fabric_gate_settings_refused",
            "1 while the settings file is wrong and what was in force before stays so.",
            registry=registry,
        )
        for cause in Cause:
            self.nodes.labels(cause=cause.value)
