"""GPUs are read through the real binding, whatever the library behind it answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import nvml_replay

# A process of its own, as in the product: the binding keeps the library that it loaded first.
_READ = """
import dataclasses, json
from probes.contract import Unreadable
from probes.readers import nvml
try:
    print(json.dumps(dataclasses.asdict(nvml.read()), default=lambda state: state.name))
except Unreadable as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def read(environment: dict[str, str], *, timeout: float = 20) -> Any:
    """What the reader gives: the facts, or the name and text of its error."""
    command = [sys.executable, "-c", _READ]
    found = subprocess.run(
        command, env=environment, check=True, capture_output=True, timeout=timeout
    )
    return json.loads(found.stdout)


@pytest.fixture
def capture() -> nvml_replay.Capture:
    """A healthy node's answers, to be changed."""
    return nvml_replay.Capture()


def test_a_healthy_node_shows_its_gpus(capture: nvml_replay.Capture, tmp_path: Path) -> None:
    """Versions are as the library says, and every GPU has the address that sysfs gives it."""
    found = read(capture.environment(tmp_path))

    assert ("570.124.06", "12.8") == (found["driver_version"], found["cuda_version"])
    assert list(capture.addresses()) == [gpu["pci"] for gpu in found["gpus"]]
    assert "0000:1b:00.0" == found["gpus"][0]["pci"]
    assert {
        "index": 7,
        "name": "NVIDIA H200",
        "uuid": capture.devices[7]["nvmlDeviceGetUUID"][1],
        "pci": "0000:df:00.0",
        "state": "ANSWERS",
        "problem": "",
    } == found["gpus"][7]


def test_the_session_ends_with_the_reading(capture: nvml_replay.Capture, tmp_path: Path) -> None:
    """An open session would keep the driver from being upgraded and GPUs from being reset."""
    read(capture.environment(tmp_path))

    assert ["opened", "closed"] == nvml_replay.sessions(tmp_path)


def test_the_session_ends_when_the_reading_fails(
    capture: nvml_replay.Capture, tmp_path: Path
) -> None:
    """A library that opens and then can't count is unreadable, and is shut down all the same."""
    capture.system["nvmlDeviceGetCount_v2"] = [nvml_replay.UNKNOWN]

    assert ["Unreadable", "NVML: Unknown Error"] == read(capture.environment(tmp_path))
    assert ["opened", "closed"] == nvml_replay.sessions(tmp_path)


@pytest.mark.parametrize(
    "refusal",
    [
        (nvml_replay.GPU_IS_LOST, "LOST", "GPU is lost"),
        (nvml_replay.RESET_REQUIRED, "NEEDS_RESET", "GPU requires restart"),
        (nvml_replay.NO_PERMISSION, "SILENT", "Insufficient Permissions"),
        (nvml_replay.UNKNOWN, "SILENT", "Unknown Error"),
    ],
)
@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo"],
)
def test_a_sick_gpu_takes_no_other_with_it(
    capture: nvml_replay.Capture, tmp_path: Path, function: str, refusal: tuple[int, str, str]
) -> None:
    """Wherever a GPU refuses, it is listed with the reason, and the other seven answer."""
    code, state, problem = refusal
    capture.devices[3][function] = [code]

    found = read(capture.environment(tmp_path))["gpus"]

    assert (3, state, problem) == (found[3]["index"], found[3]["state"], found[3]["problem"])
    assert ["ANSWERS"] * 7 == [gpu["state"] for gpu in found if gpu["index"] != 3]


def test_what_a_board_does_not_support_is_no_illness(
    capture: nvml_replay.Capture, tmp_path: Path
) -> None:
    """Name, UUID, memory and versions are missing on some boards and in some machines."""
    for function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"):
        capture.devices[0][function] = [nvml_replay.NOT_SUPPORTED]
    capture.system["nvmlSystemGetDriverVersion"] = [nvml_replay.NOT_SUPPORTED]
    capture.system["nvmlSystemGetCudaDriverVersion_v2"] = [nvml_replay.NOT_SUPPORTED]

    found = read(capture.environment(tmp_path))

    assert ("", "") == (found["driver_version"], found["cuda_version"])
    assert ("", "", "0000:1b:00.0", "ANSWERS") == tuple(
        found["gpus"][0][field] for field in ("name", "uuid", "pci", "state")
    )


@pytest.mark.parametrize(
    ("code", "error", "problem"),
    [
        (nvml_replay.DRIVER_NOT_LOADED, "NoDriver", "Driver Not Loaded"),
        (nvml_replay.LIB_RM_VERSION_MISMATCH, "DriverMismatch", "version mismatch. Reload the"),
        (nvml_replay.NO_PERMISSION, "Unreadable", "Insufficient Permissions"),
    ],
)
def test_a_library_that_does_not_open_says_why(
    capture: nvml_replay.Capture, tmp_path: Path, code: int, error: str, problem: str
) -> None:
    """What an administrator does about it differs, so the errors do; no session is left behind."""
    capture.system["nvmlInitWithFlags"] = [code]

    kind, text = read(capture.environment(tmp_path))

    assert error == kind
    assert text.startswith("NVML: ")
    assert problem in text
    assert [] == nvml_replay.sessions(tmp_path)


def test_no_library_is_said(tmp_path: Path) -> None:
    """Where the driver's files are not usable, as in a container without them, that is what is said."""
    (tmp_path / "libnvidia-ml.so.1").touch()

    kind, text = read({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})

    assert "NoLibrary" == kind
    assert text.startswith("NVML: NVML Shared Library Not Found; a container gets")


def test_a_hanging_gpu_is_left_to_the_deadline(
    capture: nvml_replay.Capture, tmp_path: Path
) -> None:
    """A call that never returns is nothing the reader can end: its process has to go, and can."""
    capture.devices[5]["nvmlDeviceGetMemoryInfo"] = [nvml_replay.NEVER_RETURNS]

    with pytest.raises(subprocess.TimeoutExpired):
        read(capture.environment(tmp_path), timeout=3)
    assert ["opened"] == nvml_replay.sessions(tmp_path)
