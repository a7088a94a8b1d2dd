"""Asynchronous copies of small arrays to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[np.generic[Any]], device: torch.device) -> Tensor:
    """Copy an array to a device; on a CPU the tensor shares its memory.

    To a GPU the copy is asynchronous, from pinned memory that torch does not reuse before the copy is done.
    """
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
