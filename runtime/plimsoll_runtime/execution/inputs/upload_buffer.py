"""The upload buffer: all integers of a step, sent to the device in one copy, on a stream of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUFFERS = 2
"""The buffers of a lane: one is filled while the device reads the other."""


class CopyLane:
    """Copies the host's part of a buffer to its part on the device, and orders copies and reads.

    This class is the lane to a CPU: a copy is complete when the call returns, so there is nothing to wait for.
    """

    def read(self, number: int) -> None:
        """Make later copies into a buffer wait for all work launched so far, which may read its part on the device."""

    def reuse(self, number: int) -> None:
        """Wait on the host until a buffer has been copied, so that it can be filled again."""

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        """Start to copy a part of the buffer `number` from the host (`source`) to the device (`target`)."""
        target.copy_(source)

    def join(self, number: int) -> None:
        """Make all work launched from here on wait for the started copies. The host does not wait."""


class CudaLane(CopyLane):
    """The lane to a GPU: a stream, and two events for each buffer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._read: list[Any] = [torch.cuda.Event() for _ in range(BUFFERS)]  # type: ignore[no-untyped-call]
        self._copied: list[Any] = [torch.cuda.Event() for _ in range(BUFFERS)]  # type: ignore[no-untyped-call]

    def read(self, number: int) -> None:
        self._read[number].record(torch.cuda.current_stream(self._device))

    def reuse(self, number: int) -> None:
        self._copied[number].synchronize()

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._read[number])
            target.copy_(source, non_blocking=True)
            self._copied[number].record(self._stream)

    def join(self, number: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._copied[number])


FEWEST_WORDS = 4096
"""The initial size of a buffer: 32 KiB."""
ALIGNED_WORDS = 16
"""Each slice begins at a multiple of this (128 bytes), which suits kernels that load several numbers at once."""


class UploadSlice:
    """Numbers in an upload buffer. They are `on_device` from when the buffer is sent until the step after the next one
    starts.
    """

    __slots__ = ("_begin", "_end", "_on_device")

    def __init__(self, begin: int, end: int) -> None:
        self._begin = begin
        self._end = end
        self._on_device: Tensor | None = None

    @property
    def on_device(self) -> Tensor:
        """The numbers, int64 [N]. Raises RuntimeError before the buffer is sent."""
        if self._on_device is None:
            raise RuntimeError("the slice of the upload buffer has not been sent")
        return self._on_device

    def mark_sent(self, words: Tensor) -> None:
        """Take the numbers from the buffer's `words` on the device."""
        self._on_device = words[self._begin : self._end]


class UploadBuffer:
    """Sends numbers of steps to a device. Steps use two buffers in turn, so one is filled while the other is still
    read.

    A step usually sends once. Later additions (for a pass that is computed again) follow in the same buffer.
    """

    def __init__(self, device: torch.device, lane: CopyLane | None = None) -> None:
        self._device = device
        self._lane = lane or (CopyLane() if device.type == "cpu" else CudaLane(device))
        self._buffers = [_Buffer(FEWEST_WORDS, device) for _ in range(BUFFERS)]
        for number in range(BUFFERS):
            # The device may still be about to write zeros, which must not overwrite copies.
            self._lane.read(number)
        self._number = 0
        self._filled = self._sent = 0
        self._waiting: list[UploadSlice] = []

    def start_step(self) -> None:
        """Start to fill the buffer of a step. It replaces the numbers of the step before the last one."""
        self._lane.read(self._number)
        self._number = (self._number + 1) % BUFFERS
        self._lane.reuse(self._number)
        self._filled = self._sent = 0
        self._waiting.clear()

    def add(self, words: NDArray[np.int64]) -> UploadSlice:
        """Copy numbers of any shape to the buffer, to be sent with the rest."""
        begin, end = self._filled, self._filled + words.size
        if end > self._buffers[self._number].size:
            self._grow(end)
        self._buffers[self._number].numbers[begin:end] = words.reshape(-1)
        self._filled = -(-end // ALIGNED_WORDS) * ALIGNED_WORDS
        added = UploadSlice(begin, end)
        self._waiting.append(added)
        return added

    def send(self) -> None:
        """Send the added numbers in one copy. Work launched from here on reads them."""
        if not self._waiting:
            return
        buffer, part = self._buffers[self._number], slice(self._sent, self._filled)
        self._lane.copy(self._number, buffer.on_device[part], buffer.on_host[part])
        self._lane.join(self._number)
        for waiting in self._waiting:
            waiting.mark_sent(buffer.on_device)
        self._waiting.clear()
        self._sent = self._filled

    def _grow(self, least: int) -> None:
        """Continue in a larger buffer. Memory of numbers that were sent stays as long as a slice of it exists."""
        old, number = self._buffers[self._number], self._number
        self._buffers[number] = _Buffer(1 << (least - 1).bit_length(), self._device)
        self._buffers[number].numbers[self._sent : self._filled] = old.numbers[self._sent : self._filled]
        # The new device memory may have belonged to a tensor that launched work still reads, and it is first filled
        # with zeros.
        self._lane.read(number)


class _Buffer:
    """Words on the host, pinned if a GPU copies them, and on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.on_host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type != "cpu")
        self.on_device = torch.zeros(size, dtype=torch.int64, device=device)
        self.numbers: NDArray[np.int64] = self.on_host.numpy()
