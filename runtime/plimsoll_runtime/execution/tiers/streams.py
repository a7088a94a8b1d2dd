"""The two streams of a device: what steps compute, and copies beside it. Neither waits for the other unless told to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in a stream, as `torch.cuda.Event` has it. It may be set anew: who waits for it waits for what it was."""

    def query(self) -> bool:
        """Whether the device has come here."""


class Streams(Protocol):
    """Everything here is only told to the device, and over when the device has come to it. `drain` alone waits."""

    def mark(self) -> Mark:
        """A point that is still to be set."""

    def computed(self, mark: Mark) -> None:
        """Set it behind all that was launched to compute."""

    def copied(self, mark: Mark) -> None:
        """Set it behind all copies."""

    def compute_behind(self, mark: Mark) -> None:
        """What is launched from here on waits until the device has come to a mark."""

    def copy_behind(self, mark: Mark) -> None:
        """Copies from here on wait until the device has come to a mark."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copies (target, source) between the device and pinned memory, one after the other."""

    def drain(self) -> None:
        """Wait for all copies, here and now."""


class CudaStreams:
    """Those of a CUDA or ROCm device: the caller's current one, and one more for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _compute(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def mark(self) -> Mark:
        """See Streams."""
        event: Mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def computed(self, mark: Mark) -> None:
        """See Streams."""
        self._compute.record_event(mark)

    def copied(self, mark: Mark) -> None:
        """See Streams."""
        self._copies.record_event(mark)

    def compute_behind(self, mark: Mark) -> None:
        """See Streams."""
        self._compute.wait_event(mark)

    def copy_behind(self, mark: Mark) -> None:
        """See Streams."""
        self._copies.wait_event(mark)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """See Streams."""
        with torch.cuda.stream(self._copies):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def drain(self) -> None:
        """See Streams."""
        self._copies.synchronize()


def streams_of(device: torch.device) -> Streams | None:
    """Those of a device; None for a CPU, whose copies are over when they return."""
    return None if device.type == "cpu" else CudaStreams(device)
