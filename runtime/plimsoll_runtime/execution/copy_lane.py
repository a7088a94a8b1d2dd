"""Copies to a device on a stream of their own, beside what it computes."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

BUFFERS = 2
"""Of a lane, by number: while the device reads what came in one, the other is filled."""


class CopyLane(Protocol):
    """Copies from the host's part of a buffer to its part on the device, and who waits for whom."""

    def read(self, number: int) -> None:
        """What was launched so far reads the device's part of a buffer: later copies into it wait for that."""

    def reuse(self, number: int) -> None:
        """The host will write into its part of a buffer: wait until that has been copied."""

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        """Begin to copy."""

    def join(self, number: int) -> None:
        """What is launched from here on waits for the copies that were begun. The host does not."""


class PlainLane:
    """Where the host computes, a copy is over when the call returns."""

    def read(self, number: int) -> None:
        """See CopyLane."""

    def reuse(self, number: int) -> None:
        """See CopyLane."""

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        """See CopyLane."""
        target.copy_(source)

    def join(self, number: int) -> None:
        """See CopyLane."""


class CudaLane:
    """A stream, and two events of each buffer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._read: list[Any] = [torch.cuda.Event() for _ in range(BUFFERS)]  # type: ignore[no-untyped-call]
        self._copied: list[Any] = [torch.cuda.Event() for _ in range(BUFFERS)]  # type: ignore[no-untyped-call]

    def read(self, number: int) -> None:
        """See CopyLane."""
        self._read[number].record(torch.cuda.current_stream(self._device))

    def reuse(self, number: int) -> None:
        """See CopyLane."""
        self._copied[number].synchronize()

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        """See CopyLane."""
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._read[number])
            target.copy_(source, non_blocking=True)
            self._copied[number].record(self._stream)

    def join(self, number: int) -> None:
        """See CopyLane."""
        torch.cuda.current_stream(self._device).wait_event(self._copied[number])


def lane_to(device: torch.device) -> CopyLane:
    """The lane to a device."""
    return PlainLane() if device.type == "cpu" else CudaLane(device)
