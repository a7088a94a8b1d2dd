"""Errors of a device are classified by the texts of torch, Triton and the driver."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from plimsoll_kernels.paged_attention import reference
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.execution.attention import base
from plimsoll_runtime.execution.device.faults import FaultKind, fault_of, is_device_memory, op_of

HINTS = """
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free."
    " Process 4711 has 70.00 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered" + HINTS), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: unspecified launch failure" + HINTS), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: device-side assert triggered" + HINTS), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: misaligned address" + HINTS), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: the launch timed out and was terminated" + HINTS), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: unknown error" + HINTS), FaultKind.FAULT),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), FaultKind.FAULT),
        (RuntimeError("HIP error: an illegal memory access was encountered"), FaultKind.FAULT),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered" + HINTS), FaultKind.ECC),
        (torch.AcceleratorError("CUDA error: uncorrectable NVLink error detected" + HINTS), FaultKind.ECC),
        (RuntimeError("NVML: GPU is lost"), FaultKind.LOST),
        (torch.AcceleratorError("CUDA error: no CUDA-capable device is detected"), FaultKind.LOST),
        (torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), FaultKind.LOST),
        (type("NVMLError_GpuIsLost", (Exception,), {})("GPU is lost"), FaultKind.LOST),
        (torch.OutOfMemoryError(FULL), FaultKind.MEMORY),
        (torch.AcceleratorError("CUDA error: out of memory" + HINTS), FaultKind.MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), FaultKind.MEMORY),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            FaultKind.MEMORY,
        ),
        (StepMemoryError("CUDA out of memory"), FaultKind.MEMORY),
        (MemoryError(), FaultKind.MEMORY),
        (torch.AcceleratorError("CUDA error: no kernel image is available for execution"), FaultKind.OTHER),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), FaultKind.OTHER),
        (RuntimeError("out of resource: shared memory, Required: 294912, Hardware limit: 232448"), FaultKind.OTHER),
        (RuntimeError("unknown error"), FaultKind.OTHER),
        (ValueError("the prompt says: CUDA error: an illegal memory access was encountered"), FaultKind.OTHER),
    ],
)
def test_kinds(error: Exception, kind: FaultKind) -> None:
    fault = fault_of(error)
    assert fault.kind is kind
    assert fault.process_can_go_on == (kind in (FaultKind.MEMORY, FaultKind.OTHER))
    assert type(error).__name__ in fault.text


def test_host_memory_is_not_the_devices() -> None:
    assert is_device_memory(torch.OutOfMemoryError(FULL))
    assert not is_device_memory(MemoryError())
    assert not is_device_memory(torch.AcceleratorError("CUDA error: unspecified launch failure"))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 (whatever was given)
        return caught


def test_what_it_was_raised_from_counts() -> None:
    try:
        try:
            raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered" + HINTS)
        except RuntimeError as error:
            raise EngineDeadError("a step failed") from error
    except EngineDeadError as dead:
        fault = fault_of(dead)
    assert fault.kind is FaultKind.ECC
    assert fault.text.startswith("AcceleratorError: CUDA error: uncorrectable ECC error encountered;")
    assert "\n" not in fault.text
    assert "kubectl cordon" in fault.text
    assert "DSA" not in fault.text


class Broken:
    """A tensor on a device that has failed: every access fails."""

    def __getattr__(self, name: str) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered" + HINTS)


def test_the_op_is_named_and_the_hint_given() -> None:
    """The innermost of nested functions is named."""
    broken: Any = Broken()
    attend = partial(reference.paged_attention_reference, broken, broken, broken, broken, scale=1.0)
    with pytest.raises(torch.AcceleratorError) as caught:
        base._blamed("triton", attend)
    name = "plimsoll_kernels.paged_attention.reference.paged_attention_reference"
    assert op_of(caught.value) == name
    text = fault_of(caught.value).text
    assert f"an illegal memory access was encountered at or before {name}; " in text
    assert "CUDA_LAUNCH_BLOCKING=1" in text


def test_where_no_code_of_ours_was_nothing_is_named() -> None:
    error = raised(torch.AcceleratorError("CUDA error: unspecified launch failure"))
    assert op_of(error) is None
    assert " at or before " not in fault_of(error).text
