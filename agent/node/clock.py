"""Two clocks: seconds since boot, which never jump, for deciding; and the time of day, for people."""

import datetime as dt
import time


def since_boot() -> float:
    """Seconds since boot, suspends included: comparable between two processes of one boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timestamp() -> str:
    """Now, as Kubernetes writes times: RFC 3339, UTC, whole seconds."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
