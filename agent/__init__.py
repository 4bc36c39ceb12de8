"""The daemon that proves its node and the gate that decides. Knows Kubernetes, nothing of hardware."""
