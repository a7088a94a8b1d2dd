"""The number of programs that a device runs in parallel."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; 1 on other devices, where kernels are interpreted one program at a time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
