"""A probe on a machine that believes a tree of kernel files and a replayed library: both are put
where the probe looks on any node, for one process and nobody else.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Runs in a mount namespace of its own: binds the tree's /sys over the machine's, and becomes the probe.
_BIND = """
import os, subprocess, sys
subprocess.run(["mount", "--bind", sys.argv[1], "/sys"], check=True)
os.execv(sys.executable, [sys.executable, "-m", "probes", *sys.argv[2:]])
"""


def verdict(root: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """What `python -m probes ARGUMENTS` says where /sys is that of `root`."""
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    namespace = ["unshare", *as_root, "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*namespace, sys.executable, "-c", _BIND, str(root / "sys"), *arguments],
        env=environment,
        capture_output=True,
        check=False,
        timeout=25,
    )
    assert done.stdout, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    found: dict[str, Any] = answer["verdict"]
    return found
