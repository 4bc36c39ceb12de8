"""The daemon that proves its node and the gate that decides.

Knows Kubernetes, nothing of hardware.
"""

VERSION = "0.1.0"
