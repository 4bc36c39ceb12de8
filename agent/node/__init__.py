"""One node: probes are scheduled, run in isolation, judged over time and published."""
