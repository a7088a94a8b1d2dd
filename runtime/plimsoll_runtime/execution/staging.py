"""Integers on their way from the host to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.execution.events import Event, device_event


class Staging:
    """A pinned buffer and its twin on the device. Copies are ordered as the current stream is; the host goes on.

    The buffer is written again only after its last copy was read: an event says so, which is long past when steps take
    longer than copies. On a CPU the two are plain memory, and there is no event unless one is given.
    """

    def __init__(self, capacity: int, device: torch.device, *, read: Event | None = None) -> None:
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(capacity, dtype=torch.int32, pin_memory=on_gpu)
        self._device = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._read = read or device_event(device)

    def send(self, values: NDArray[np.integer[Any]]) -> Tensor:
        """int32 of the values' shape on the device, valid until the next call. ValueError beyond the capacity."""
        if values.size > self._host.numel():
            raise ValueError(f"{values.size} integers do not fit a buffer of {self._host.numel()}")
        if self._read is not None:
            self._read.synchronize()
        self._host.numpy()[: values.size] = values.reshape(-1)
        sent = self._device[: values.size]
        sent.copy_(self._host[: values.size], non_blocking=True)
        if self._read is not None:
            self._read.record()
        return sent.view(values.shape)
