"""Selects the implementation of an op, and has the checks that all ops share."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

Implementation = Literal["auto", "triton", "reference"]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def use_triton(wanted: Implementation, tensor: Tensor) -> bool:
    """Return whether to run the Triton kernel: on a GPU if possible ("auto"), or because it was requested.

    Raises ValueError if it was requested and cannot run. On a CPU it can run if Triton interprets kernels: set
    TRITON_INTERPRET=1 before triton is imported for the first time.
    """
    if wanted == "reference":
        return False
    if wanted == "auto":
        return tensor.is_cuda and _installed()
    if not _installed():
        raise ValueError("the Triton kernel was requested, but the package triton is not installed")
    if not tensor.is_cuda and not _interpreted():
        raise ValueError(
            f"the Triton kernel needs a CUDA or ROCm tensor, got one on {tensor.device}; "
            "to interpret it on a CPU set TRITON_INTERPRET=1"
        )
    return True


def check_floats(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors have one float dtype and one device, and a contiguous last dimension."""
    (name, first), *others = tensors.items()
    if first.dtype not in FLOATS:
        raise ValueError(f"{name} is {first.dtype}; kernels take float32, bfloat16 and float16")
    for other, tensor in others:
        if (tensor.dtype, tensor.device) != (first.dtype, first.device):
            raise ValueError(
                f"{other} is {tensor.dtype} on {tensor.device}, but {name} is {first.dtype} on {first.device}"
            )
    for other, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"the last dimension of {other} has stride {tensor.stride(-1)}; it must be contiguous")


def check_shape(name: str, tensor: Tensor, *expected: int) -> None:
    """Raise ValueError unless the tensor has exactly this shape."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} is {list(tensor.shape)}, expected {list(expected)}")


@lru_cache(maxsize=1)
def _installed() -> bool:
    return find_spec("triton") is not None


def _interpreted() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)
