"""A device that computes behind the host's back, on a CPU: copies to the host are there when they are waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plimsoll_runtime.execution import late, runner
from plimsoll_runtime.execution.forward import ForwardPass

UNKNOWN = -9


class Copies:
    """An event of that device, and the copies that were asked for before it; wrong numbers are on the host until then.

    `log`: that passes were begun, that copies were asked for, and that they were waited for.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self._under_way: list[tuple[Tensor, Tensor]] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From here on engines are built for such a device."""
        forward = ForwardPass.__call__

        def noted(own: ForwardPass, *args: Any) -> Tensor:
            self.log.append("forward")
            return forward(own, *args)

        patch.setattr(ForwardPass, "__call__", noted)
        patch.setattr(runner, "device_event", lambda device: self)
        patch.setattr(late, "_on_host", self._copy)

    def record(self) -> None:
        """See Event."""
        self.log.append("copy")

    @torch.inference_mode()
    def synchronize(self) -> None:
        """See Event."""
        self.log.append("wait")
        for host, value in self._under_way:
            host.copy_(value)
        self._under_way.clear()

    def _copy(self, value: Tensor) -> Tensor:
        host = torch.full_like(value, UNKNOWN)
        self._under_way.append((host, value.clone()))
        return host
