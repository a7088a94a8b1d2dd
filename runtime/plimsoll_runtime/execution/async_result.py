"""Results of steps whose tokens are still being copied to the host while the device computes the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import StepResult
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState


class Event(Protocol):
    """A point in the work that was launched, as `torch.cuda.Event` has it."""

    def record(self) -> None:
        """Lie behind all that was launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has come here; not at all where nothing was recorded."""


def device_event(device: torch.device) -> Event | None:
    """An event of a device; None for a CPU, which has done its work when a call returns."""
    return None if device.type == "cpu" else cast(Event, torch.cuda.Event())  # type: ignore[no-untyped-call]


class AsyncResult:
    """See Launched. What the host is to see was copied when the device came to `copied`, and not before."""

    def __init__(
        self, values: Sequence[Tensor], copied: Event, finish: Callable[[Sequence[Tensor]], StepResult]
    ) -> None:
        """`finish` makes the result of the values, once they are on the host."""
        self._values = [_on_host(value) for value in values]
        copied.record()
        self._copied = copied
        self._finish = finish
        self._result: StepResult | None = None

    @property
    def ready(self) -> bool:
        """See Launched."""
        return self._result is not None

    def result(self) -> StepResult:
        """See Launched."""
        if self._result is None:
            self._copied.synchronize()
            self._result = self._finish(self._values)
        return self._result


def _on_host(value: Tensor) -> Tensor:
    """A copy that is whole when the device has come to it."""
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    return host.copy_(value, non_blocking=True)


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """The state there; the event behind which a step's tokens are on the host; and graphs that choose them, if any."""

    state: DeviceState
    copied: Event
    choices: SamplingGraphs | None = None
