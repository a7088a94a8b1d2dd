"""Which number format a model runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plimsoll_kernels.cpu.library import InstructionsError, instructions
from plimsoll_runtime.errors import UsageError

NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_instructions() -> None:
    """Raises UsageError where PLIMSOLL_CPU_ISA asks for instructions that cannot be had."""
    try:
        instructions()
    except InstructionsError as error:
        raise UsageError(str(error)) from error


def bfloat16_is_fast(device: torch.device, *, ours: bool) -> bool:
    """Whether a model in bfloat16 is at least as fast as in float32 on this device.

    Our CPU kernels (`ours`: they can serve the model) read half of float32's bytes, which they multiply in pairs where
    the processor can and else widen in registers. Stock torch is slower in bfloat16 where the CPU lacks it.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return ours or (_has_mkldnn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def _has_mkldnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def choose_dtype(
    wanted: str, config: Mapping[str, Any], device: torch.device, *, quantised: bool, ours: bool
) -> torch.dtype:
    """The dtype for "auto" or a name.

    "auto" keeps the checkpoint's own dtype where the device is fast at it. On a CPU float16 has no fast path and
    becomes float32, and bfloat16 stays where `bfloat16_is_fast`. A quantised file decodes to bfloat16 or float32.
    Raises UsageError for an unknown name, and for bfloat16 on a GPU that has none.
    """
    if wanted != "auto":
        if wanted not in NAMES:
            raise UsageError(f"--dtype {wanted} is unknown; choose auto, {', '.join(NAMES)}")
        if wanted == "bfloat16" and device.type == "cuda" and not bfloat16_is_fast(device, ours=ours):
            raise UsageError(
                f"--dtype bfloat16: {torch.cuda.get_device_name(device)} has no bfloat16; choose float16, or float32 "
                "where float16's range is too small"
            )
        return NAMES[wanted]
    stored = config.get("dtype") or config.get("torch_dtype") or ("bfloat16" if quantised else "float32")
    dtype = NAMES.get(str(stored).removeprefix("torch."), torch.float32)
    if dtype is torch.bfloat16 and not bfloat16_is_fast(device, ours=ours):
        return torch.float16 if device.type == "cuda" else torch.float32
    if dtype is torch.float16 and device.type == "cpu":
        return torch.float32
    return dtype
