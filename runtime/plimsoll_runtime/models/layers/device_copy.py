"""Small arrays on their way to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[np.generic[Any]], device: torch.device) -> Tensor:
    """An array on a device; on a CPU it shares its memory. A GPU copies it when its stream comes to that, from pinned
    memory that torch gives to nobody else before.
    """
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
