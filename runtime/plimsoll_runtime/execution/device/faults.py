"""Classifies errors by their meaning for the device: whether the process can continue, and the message for people.

It only reads the name of an error's class and its text, so a process that has not imported torch can classify errors
too. CUDA's texts are those of cudaGetErrorString, which torch and Triton pass on; those of ROCm are the same for the
phrases listed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from traceback import walk_tb


class FaultKind(Enum):
    """The kind of a failure. The value is for logs."""

    FAULT = "fault"
    ECC = "memory error of the device"
    LOST = "lost device"
    MEMORY = "out of memory"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a device. `text` is for people: the error, the op if known, and what to do."""

    kind: FaultKind
    text: str

    @property
    def process_can_go_on(self) -> bool:
        """Whether this process can still use the device. After a fault, an ECC error or a lost device every later call
        fails.
        """
        return self.kind in (FaultKind.MEMORY, FaultKind.OTHER)

    @property
    def device_can_go_on(self) -> bool:
        """Whether other processes can use the device; a kernel's fault only affects its own process."""
        return self.kind not in (FaultKind.ECC, FaultKind.LOST)


_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIPBLAS_STATUS_ALLOC_FAILED")
_ECC = ("uncorrectable ECC error", "uncorrectable NVLink error")
_LOST = (
    "GPU is lost",
    "no CUDA-capable device is detected",
    "no ROCm-capable device is detected",
    "device(s) is/are busy or unavailable",
)
_FAULT = (
    "an illegal memory access was encountered",
    "unspecified launch failure",
    "device-side assert triggered",
    "misaligned address",
    "an illegal instruction was encountered",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "hardware stack error",
    "the launch timed out and was terminated",
    "unknown error",
)
_KINDS = ((FaultKind.ECC, _ECC), (FaultKind.LOST, _LOST), (FaultKind.FAULT, _FAULT), (FaultKind.MEMORY, _MEMORY))

_MEMORY_ERRORS = ("OutOfMemoryError", "StepMemoryError")
"""Class names of out-of-memory errors: torch's own, and the runtime's for a step."""

_SPEAKERS = ("CUDA error", "CUDA driver error", "HIP error", "Triton Error", "NVML", "CUBLAS", "HIPBLAS")
"""Phrases that mark a text as one about a device; other texts with "unknown error" are not."""

LOOK_FOR_XID = (
    "look for Xid in the node's kernel log (dmesg), and take the node out of service (kubectl cordon) until the GPU "
    "was reset"
)
_ADVICE = {
    FaultKind.FAULT: "the device's state is lost for this process, which ends. An earlier kernel may have caused the "
    "error: set CUDA_LAUNCH_BLOCKING=1 in the environment to find it",
    FaultKind.ECC: "the device's memory is damaged, and this process ends. If it happens again, take the node out of "
    "service (kubectl cordon) and reset the GPU: nvidia-smi -q -d ECC,ROW_REMAPPER shows details",
    FaultKind.LOST: f"the device no longer answers, and this process ends: {LOOK_FOR_XID}",
}

_OPS = ("plimsoll_kernels", "plimsoll_runtime.models.ops", "plimsoll_runtime.execution.attention")
_OURS = "plimsoll_"


def fault_of(error: BaseException) -> Fault:
    """Return the meaning of an error, or of the first of its causes that is about a device."""
    for each in _causes(error):
        kind = _kind(each)
        if kind is FaultKind.OTHER:
            continue
        told = f"{type(each).__name__}: {_first_line(each)}"
        if (advice := _ADVICE.get(kind)) is None:
            return Fault(kind, told)
        op = op_of(each)
        where = f" at or before {op}" if op else ""
        return Fault(kind, f"{told}{where}; {advice}")
    return Fault(FaultKind.OTHER, f"{type(error).__name__}: {error}")


def is_device_memory(error: BaseException) -> bool:
    """Return whether the device was out of memory and is otherwise intact, so that a smaller step may succeed."""
    return not isinstance(error, MemoryError) and fault_of(error).kind is FaultKind.MEMORY


def op_of(error: BaseException) -> str | None:
    """Return the op that was being launched when an error was raised, as "module.function"; None if it was no code of
    Plimsoll.

    The innermost function of a kernel's or an op's module, else the innermost one of Plimsoll.
    """
    names = [f"{f.f_globals.get('__name__', '')}.{f.f_code.co_qualname}" for f, _ in walk_tb(error.__traceback__)]
    for prefixes in (_OPS, (_OURS,)):
        found = [name for name in names if name.startswith(prefixes)]
        if found:
            return found[-1]
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _kind(error: BaseException) -> FaultKind:
    if isinstance(error, MemoryError) or type(error).__name__ in _MEMORY_ERRORS:
        return FaultKind.MEMORY
    text = str(error)
    if type(error).__name__ == "NVMLError_GpuIsLost":
        return FaultKind.LOST
    if not isinstance(error, RuntimeError) or not any(speaker in text for speaker in _SPEAKERS):
        return FaultKind.OTHER
    first = text.partition("\n")[0]
    return next((kind for kind, phrases in _KINDS if any(phrase in first for phrase in phrases)), FaultKind.OTHER)


def _first_line(error: BaseException) -> str:
    """Return the first line: torch's hints in the next lines only concern debugging torch itself."""
    return str(error).partition("\n")[0]
