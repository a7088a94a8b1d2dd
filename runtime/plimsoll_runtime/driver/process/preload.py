"""Preparation for an engine before its model is known: imports, and the choice of CPU kernels."""

from __future__ import annotations

import gc

import torch

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.driver import estimate
from plimsoll_runtime.driver.build import engine
from plimsoll_runtime.weights import safetensors
from plimsoll_runtime.weights.gguf import tensors

HEAVY = (engine, estimate, safetensors, tensors)
"""Modules that take long to import, some of which an engine imports only when it needs them."""


def freeze_imports() -> None:
    """Exclude imported objects from garbage collection, which would write to their pages in every forked process."""
    gc.collect()
    gc.freeze()


def choose_kernels() -> None:
    """Load the CPU kernels and choose their instruction set. This starts threads."""
    for dtype in (torch.float32, torch.bfloat16):
        kernels(dtype)
