"""What an engine's process can do before it knows its model: imports, and finding out what this machine runs."""

from __future__ import annotations

import torch

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.driver import build, measure
from plimsoll_runtime.weights import safetensors_files
from plimsoll_runtime.weights.gguf import tensors

HEAVY = (build, measure, safetensors_files, tensors)
"""Modules that take long to import, some of which an engine imports only when it needs them."""


def warm() -> None:
    """Import them, load the CPU kernels, and choose among their instruction sets."""
    for dtype in (torch.float32, torch.bfloat16):
        kernels(dtype)
