"""Steps whose tokens are on their way to the host, while the device goes on with the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import StepResult
from plimsoll_runtime.execution.events import Event


class LateStep:
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
