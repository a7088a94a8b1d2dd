"""Which number format a model runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plimsoll_runtime.errors import UsageError

NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bfloat16_is_native(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware (else it is slower than float32)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_dtype(wanted: str, config: Mapping[str, Any], device: torch.device, *, quantised: bool) -> torch.dtype:
    """The dtype for "auto" or a name.

    "auto" keeps the checkpoint's own dtype where the device computes in it. On a CPU float16 has no fast path and
    becomes float32, and bfloat16 stays where the CPU has it. A quantised file decodes to bfloat16 or float32.
    """
    if wanted != "auto":
        if wanted not in NAMES:
            raise UsageError(f"--dtype {wanted} is unknown; choose auto, {', '.join(NAMES)}")
        return NAMES[wanted]
    stored = config.get("dtype") or config.get("torch_dtype") or ("bfloat16" if quantised else "float32")
    dtype = NAMES.get(str(stored).removeprefix("torch."), torch.float32)
    if dtype is torch.bfloat16 and not bfloat16_is_native(device):
        return torch.float16 if device.type == "cuda" else torch.float32
    if dtype is torch.float16 and device.type == "cpu":
        return torch.float32
    return dtype
