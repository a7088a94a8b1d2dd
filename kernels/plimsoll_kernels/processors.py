"""How many programs a device runs beside each other."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; one where kernels are interpreted, whose programs run one after the other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
