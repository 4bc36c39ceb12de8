"""NVIDIA's management library without a GPU: written-down answers, given under the real binding.

The product loads `libnvidia-ml.so.1` through nvidia-ml-py as on any node; only the file behind that
name is another (`replay.c`). `h200.json` holds answers in the form of a healthy node with eight
GPUs (written by hand, not recorded), and a test changes the few that its fault would change.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_SOURCE = _HERE / "replay.c"
_CAPTURE = "capture"

# Codes of NVML, and one of ours.
SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999
NEVER_RETURNS = -1


def _compile(folder: Path) -> None:
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=60)


class Capture:
    """The answers of one machine: `system` by function, `devices` by index and function.

    An answer is `[code, value]`.
    """

    def __init__(self) -> None:
        healthy = json.loads((_HERE / "h200.json").read_text(encoding="utf-8"))
        self.system: dict[str, list[Any]] = healthy["system"]
        self.devices: list[dict[str, list[Any]]] = healthy["devices"]

    def addresses(self) -> tuple[str, ...]:
        """PCI addresses of the GPUs as sysfs writes them."""
        bus_ids = (device["nvmlDeviceGetPciInfo_v3"][1] for device in self.devices)
        return tuple(bus_id.lower().removeprefix("0000") for bus_id in bus_ids)

    def without(self, index: int) -> None:
        """The library does not show this device any more; the others move up."""
        del self.devices[index]

    def environment(self, folder: Path) -> dict[str, str]:
        """Puts library and capture into `folder`; gives the environment of a process that uses them."""
        _compile(folder)
        count = {"nvmlDeviceGetCount_v2": [SUCCESS, len(self.devices)]}
        lines = [_line(key, answer) for key, answer in {**count, **self.system}.items()]
        for index, device in enumerate(self.devices):
            lines += [_line(f"{index}.{key}", answer) for key, answer in device.items()]
        path = folder / _CAPTURE
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {**os.environ, "NVML_REPLAY": str(path), "LD_LIBRARY_PATH": str(folder)}


def _line(key: str, answer: list[Any]) -> str:
    return " ".join(str(part) for part in (key, *answer))


def sessions(folder: Path) -> list[str]:
    """What happened to the sessions of the library in `folder`: `opened` and `closed`, in order."""
    written = folder / f"{_CAPTURE}.sessions"
    return written.read_text(encoding="utf-8").split() if written.exists() else []
