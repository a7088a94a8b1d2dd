"""The upload buffer: all integers of a step, copied to the device at once, on a stream of their own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
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


FEWEST_WORDS = 4096
"""Of a buffer, at first: 32 KiB."""
ALIGNED_WORDS = 16
"""Each slice begins at a multiple of so many (128 bytes), as kernels that load several numbers at once like it."""


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
        """int64 [N]. Raises RuntimeError before the buffer is sent."""
        if self._on_device is None:
            raise RuntimeError("the slice of the upload buffer has not been sent")
        return self._on_device

    def mark_sent(self, words: Tensor) -> None:
        """Take the numbers from the buffer's `words` on the device."""
        self._on_device = words[self._begin : self._end]


class UploadBuffer:
    """What steps send to a device. Each has one of two buffers, so that it is filled while the other is still read.

    Usually a step sends once. What is sent besides (for a pass that is computed again) lies behind it.
    """

    def __init__(self, device: torch.device, lane: CopyLane | None = None) -> None:
        self._device = device
        self._lane = lane or lane_to(device)
        self._buffers = [_Buffer(FEWEST_WORDS, device) for _ in range(BUFFERS)]
        for number in range(BUFFERS):
            # The device may have still to fill them with zeros, which must not come behind what is copied.
            self._lane.read(number)
        self._number = 0
        self._filled = self._sent = 0
        self._waiting: list[UploadSlice] = []

    def start_step(self) -> None:
        """Start to fill the buffer of a step. What the last step but one has sent may be overwritten."""
        self._lane.read(self._number)
        self._number = (self._number + 1) % BUFFERS
        self._lane.reuse(self._number)
        self._filled = self._sent = 0
        self._waiting.clear()

    def add(self, words: NDArray[np.int64]) -> UploadSlice:
        """Have numbers of any shape sent with the rest; they are copied now."""
        begin, end = self._filled, self._filled + words.size
        if end > self._buffers[self._number].size:
            self._grow(end)
        self._buffers[self._number].numbers[begin:end] = words.reshape(-1)
        self._filled = -(-end // ALIGNED_WORDS) * ALIGNED_WORDS
        added = UploadSlice(begin, end)
        self._waiting.append(added)
        return added

    def send(self) -> None:
        """Send what was added, in one copy. What is launched from here on finds it there."""
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
        """Go on in a larger buffer. What was sent stays where it is as long as somebody has a slice of it."""
        old, number = self._buffers[self._number], self._number
        self._buffers[number] = _Buffer(1 << (least - 1).bit_length(), self._device)
        self._buffers[number].numbers[self._sent : self._filled] = old.numbers[self._sent : self._filled]
        # Its memory on the device may have been another tensor's, which what was launched before still reads. And zeros
        # come there first.
        self._lane.read(number)


class _Buffer:
    """Words on the host, pinned if the device copies by itself, and on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.on_host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type != "cpu")
        self.on_device = torch.zeros(size, dtype=torch.int64, device=device)
        self.numbers: NDArray[np.int64] = self.on_host.numpy()
