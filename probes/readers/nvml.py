"""GPUs as NVIDIA's management library shows them, in one short session that leaves nothing open.

Every call may be unsupported on a board, or hang on a sick one; a GPU that can't be asked is still
listed, with the reason. A standing session would block driver upgrades and GPU resets, so there is
none.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from probes.contract import Unreadable


class NoLibrary(Unreadable):
    """libnvidia-ml.so.1 is not on this machine (or not mounted into this container)."""


class NoDriver(Unreadable):
    """The library is there and the kernel driver is not loaded."""


class DriverMismatch(Unreadable):
    """Kernel driver and library are of different versions: an upgrade without a reload."""


class State(enum.Enum):
    """How a GPU takes being asked."""

    ANSWERS = enum.auto()
    LOST = enum.auto()
    """It fell off the bus, or its driver gave it up."""
    NEEDS_RESET = enum.auto()
    SILENT = enum.auto()
    """It can't be asked, for a reason that need not be its own (no permission, an unknown error)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by its NVML index. `pci` is in the form of sysfs, empty where NVML does not tell.

    `problem` is the library's own word for a state other than ANSWERS.
    """

    index: int
    name: str
    uuid: str
    pci: str
    state: State
    problem: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """What the library says. Versions are empty where it does not tell."""

    driver_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]


def read() -> Nvml:
    """Opens the library, asks everything, and shuts it down again.

    Raises:
        NoLibrary, NoDriver, DriverMismatch: as they say.
        Unreadable: the library can't be used for another reason.
    """
    try:
        import pynvml  # noqa: PLC0415
    except ImportError as error:
        raise NoLibrary("NVML", f"{error}: install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _unusable(pynvml, error) from error
    try:
        return Nvml(
            driver_version=_or_empty(pynvml, pynvml.nvmlSystemGetDriverVersion),
            cuda_version=_cuda(pynvml),
            gpus=_gpus(pynvml),
        )
    except pynvml.NVMLError as error:
        raise _unusable(pynvml, error) from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _unusable(pynvml: Any, error: Any) -> Unreadable:
    kinds: dict[int, tuple[type[Unreadable], str]] = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            NoLibrary,
            "; a container gets the driver's libraries from its runtime class",
        ),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (NoDriver, ""),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            DriverMismatch,
            " Reload the kernel module, or reboot",
        ),
    }
    kind, advice = kinds.get(error.value, (Unreadable, ""))
    return kind("NVML", f"{error}{advice}")


def _gpus(pynvml: Any) -> tuple[Gpu, ...]:
    return tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))


def _gpu(pynvml: Any, index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = _pci_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
    except pynvml.NVMLError as error:
        state = _state(pynvml, error)
        return Gpu(index=index, name="", uuid="", pci="", state=state, problem=str(error))
    state, problem = _ask(pynvml, handle)
    return Gpu(
        index=index,
        name=_or_empty(pynvml, lambda: pynvml.nvmlDeviceGetName(handle)),
        uuid=_or_empty(pynvml, lambda: pynvml.nvmlDeviceGetUUID(handle)),
        pci=pci,
        state=state,
        problem=problem,
    )


def _ask(pynvml: Any, handle: Any) -> tuple[State, str]:
    """Lost GPUs and those that want a reset fail the simplest question about their memory; some
    boards do not support the question, and are well.
    """
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        unsupported = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
        if error.value not in unsupported:
            return _state(pynvml, error), str(error)
    return State.ANSWERS, ""


def _state(pynvml: Any, error: Any) -> State:
    sick = {
        pynvml.NVML_ERROR_GPU_IS_LOST: State.LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED: State.NEEDS_RESET,
    }
    return sick.get(error.value, State.SILENT)


def _or_empty(pynvml: Any, call: Callable[[], bytes | str]) -> str:
    """The text that a call gives; empty where a board or driver does not support it."""
    try:
        return _text(call())
    except pynvml.NVMLError:
        return ""


def _cuda(pynvml: Any) -> str:
    """`12.8` of 12080."""
    try:
        found = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    return f"{found // 1000}.{found % 1000 // 10}"


def _text(value: bytes | str) -> str:
    """Releases of the binding differ in what they return."""
    return value.decode() if isinstance(value, bytes) else value


def _pci_address(bus_id: str) -> str:
    """`0000:1b:00.0` of NVML's `00000000:1B:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
