"""What an error means for the device that it came from: whether the process can go on, and what people are told.

Told from its class's name and its text alone, so that a process that has not imported torch can tell as well. CUDA's
texts are cudaGetErrorString's, which torch and Triton pass on; those of ROCm are the same where they are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from traceback import walk_tb


class FaultKind(Enum):
    """What went wrong. The value is for logs."""

    FAULT = "fault"
    ECC = "memory error of the device"
    LOST = "lost device"
    MEMORY = "out of memory"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a device. `text` is for people: what came, at which op if there is one, and what to do."""

    kind: FaultKind
    text: str

    @property
    def process_can_go_on(self) -> bool:
        """Whether the device can still be used by this process: after the others every later call fails too."""
        return self.kind in (FaultKind.MEMORY, FaultKind.OTHER)

    @property
    def device_can_go_on(self) -> bool:
        """Whether other processes can use the device: a kernel's fault is that of its own process alone."""
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
"""Torch's, and our own of a step."""

_SPEAKERS = ("CUDA error", "CUDA driver error", "HIP error", "Triton Error", "NVML", "CUBLAS", "HIPBLAS")
"""How texts begin that are about a device, in whichever line: what else says "unknown error" is not about one."""

LOOK_FOR_XID = (
    "look for Xid in the node's kernel log (dmesg), and take the node out of service (kubectl cordon) until the GPU "
    "was reset"
)
_ADVICE = {
    FaultKind.FAULT: "the device's state is lost for this process, which ends. The error may have been made by an "
    "earlier kernel: CUDA_LAUNCH_BLOCKING=1 in the environment names the very one",
    FaultKind.ECC: "the device's memory is damaged, and this process ends. Where it comes again, take the node out of "
    "service (kubectl cordon) and reset the GPU: nvidia-smi -q -d ECC,ROW_REMAPPER tells more",
    FaultKind.LOST: f"the device no longer answers, and this process ends: {LOOK_FOR_XID}",
}

_OPS = ("plimsoll_kernels", "plimsoll_runtime.models.ops", "plimsoll_runtime.execution.attention")
_OURS = "plimsoll_"


def fault_of(error: BaseException) -> Fault:
    """What an error means, or what it was raised from."""
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
    """Whether the device had no memory left, and is as it was before: a smaller step may have what it needs."""
    return not isinstance(error, MemoryError) and fault_of(error).kind is FaultKind.MEMORY


def op_of(error: BaseException) -> str | None:
    """The op that was being launched when an error came, as "module.function"; None where no code of ours was.

    The innermost function of a kernel's or an op's module, else the innermost one of ours.
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
    """Torch's hints in the lines behind are about its own ways to look for a fault."""
    return str(error).partition("\n")[0]
