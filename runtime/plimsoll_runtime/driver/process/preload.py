"""What can be done for an engine before its model is known: imports, and finding out what this machine runs."""

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
    """What was imported stays for good: without this a collection in any process would write to all of it."""
    gc.collect()
    gc.freeze()


def choose_kernels() -> None:
    """Load the CPU kernels and choose among their instruction sets. This starts threads."""
    for dtype in (torch.float32, torch.bfloat16):
        kernels(dtype)
