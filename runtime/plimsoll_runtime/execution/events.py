"""Points in a device's work that the host may wait for."""

from __future__ import annotations

from typing import Protocol, cast

import torch


class Event(Protocol):
    """A point in the work that was launched, as `torch.cuda.Event` has it."""

    def record(self) -> None:
        """Lie behind all that was launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has come here; not at all where nothing was recorded."""


def device_event(device: torch.device) -> Event | None:
    """An event of a device; None for a CPU, which has done its work when a call returns."""
    return None if device.type == "cpu" else cast(Event, torch.cuda.Event())  # type: ignore[no-untyped-call]
