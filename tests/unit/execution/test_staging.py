"""Integers on their way to a device: no buffer is written again before it was read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plimsoll_runtime.execution.staging import Staging


class SlowDevice:
    """An event of a device that reads the host's buffer only when it is waited for."""

    def __init__(self) -> None:
        self.host = torch.empty(0)
        self.read: list[list[int]] = []
        self.recorded: list[list[int]] = []

    def record(self) -> None:
        self.recorded.append(self.host.tolist())

    def synchronize(self) -> None:
        self.read.append(self.host.tolist())


def test_a_buffer_is_not_overwritten_while_it_is_copied() -> None:
    device = SlowDevice()
    staging = Staging(3, torch.device("cpu"), read=device)
    device.host = staging._host
    for sent in ([1, 2, 3], [4, 5, 6]):
        assert staging.send(np.array(sent, np.int32)).tolist() == sent
    assert device.read == [[0, 0, 0], [1, 2, 3]], "what is waited for is the copy before"
    assert device.recorded == [[1, 2, 3], [4, 5, 6]], "and it is recorded behind the copy"


def test_shape_and_capacity() -> None:
    staging = Staging(6, torch.device("cpu"))
    sent = staging.send(np.arange(6).reshape(2, 3))
    assert (sent.tolist(), sent.dtype) == ([[0, 1, 2], [3, 4, 5]], torch.int32)
    with pytest.raises(ValueError, match="7 integers do not fit a buffer of 6"):
        staging.send(np.arange(7))
