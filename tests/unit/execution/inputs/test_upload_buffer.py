"""A step's numbers arrive completely and in order, and are not overwritten before they are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_runtime.execution.inputs import upload_buffer as upload_buffer_module
from plimsoll_runtime.execution.inputs.upload_buffer import (
    ALIGNED_WORDS,
    BUFFERS,
    FEWEST_WORDS,
    CopyLane,
    CudaLane,
    UploadBuffer,
    _Buffer,
)

CPU = torch.device("cpu")


class LateLane(CopyLane):
    """A lane whose device computes only on demand. Copies are made as early as its events allow, or `late`.

    `launched`: work that the device has still to do, which reads the numbers sent.
    """

    def __init__(self, *, late: bool = False) -> None:
        self.launched: list[Callable[[], None]] = []
        self.copies = 0
        self._late = late
        self._asked: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(BUFFERS)]
        self._readers: list[int] = [0] * BUFFERS
        self._copied: list[int] = [0] * BUFFERS
        self._done = 0

    def compute(self, count: int | None = None) -> None:
        """Let the device compute `count` launched works, or all."""
        while self.launched and (count is None or self._done < count):
            self.launched.pop(0)()
            self._done += 1

    def read(self, number: int) -> None:
        self._readers[number] = self._done + len(self.launched)

    def reuse(self, number: int) -> None:
        assert not self._asked[number], "copies that no launch has joined"
        self.compute(self._copied[number])

    def copy(self, number: int, target: Tensor, source: Tensor) -> None:
        if not self._late:
            self.compute(self._readers[number])
        self._asked[number].append((target, source))
        self.copies += 1

    def join(self, number: int) -> None:
        asked, self._asked[number] = self._asked[number], []
        if self._late:
            self.launched.append(partial(_copy, asked))
            self._copied[number] = self._done + len(self.launched)
        else:
            _copy(asked)


class Zeroed(_Buffer):
    """A buffer that the lane's device fills with zeros when it gets there."""

    def __init__(self, lane: LateLane, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        lane.launched.append(partial(_zero, self.on_device))


def _zero(there: Tensor) -> None:
    there.zero_()


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for target, source in pairs:
        target.copy_(source)


def _read(there: Tensor, into: list[Tensor]) -> None:
    into.append(there.clone())


@given(
    steps=st.lists(
        st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=4), min_size=1, max_size=3), max_size=8
    ),
    beside=st.integers(0, 3),
    late=st.booleans(),
)
def test_whatever_is_sent_arrives(steps: list[list[list[int]]], beside: int, late: bool) -> None:
    """Also with several sends in a step, with more than a buffer holds, and while the device is a step behind."""
    lane = LateLane(late=late)
    with patch.object(upload_buffer_module, "_Buffer", partial(Zeroed, lane)):
        _check_arrives(lane, steps, beside)


def _check_arrives(lane: LateLane, steps: list[list[list[int]]], beside: int) -> None:
    buffer, count, sent, read = UploadBuffer(CPU, lane), 0, list[np.ndarray](), list[Tensor]()
    for number, sends in enumerate(steps):
        buffer.start_step()
        for sizes in sends:
            arrays = [np.arange(count + i, count + i + size) for i, size in enumerate(sizes)]
            count += sum(sizes)
            slices = [buffer.add(array) for array in arrays]
            buffer.send()
            for array, added in zip(arrays, slices, strict=True):
                there = added.on_device
                sent.append(array)
                lane.launched.append(partial(_read, there, read))
                assert there.numel() == 0 or there.data_ptr() % 8 == 0
        if number % (beside + 1) == 0:
            lane.compute()
    lane.compute()
    assert [each.tolist() for each in read] == [each.tolist() for each in sent]
    assert lane.copies == sum(len(sends) for sends in steps)


def test_one_copy_for_all() -> None:
    lane = LateLane()
    buffer = UploadBuffer(CPU, lane)
    buffer.start_step()
    first, second = buffer.add(np.arange(3)), buffer.add(np.arange(6).reshape(2, 3) + 10)
    with pytest.raises(RuntimeError, match="has not been sent"):
        _ = first.on_device
    buffer.send()
    buffer.send()
    assert (first.on_device.tolist(), second.on_device.tolist()) == ([0, 1, 2], [10, 11, 12, 13, 14, 15])
    assert lane.copies == 1
    assert (second.on_device.data_ptr() - first.on_device.data_ptr()) % (8 * ALIGNED_WORDS) == 0


def test_a_slice_stays_when_the_buffer_grows() -> None:
    buffer = UploadBuffer(CPU)
    buffer.start_step()
    first = buffer.add(np.arange(5))
    buffer.send()
    second, third = buffer.add(np.arange(7)), buffer.add(np.arange(FEWEST_WORDS))
    buffer.send()
    assert [p.on_device.tolist() for p in (first, second)] == [list(range(5)), list(range(7))]
    assert third.on_device.tolist() == list(range(FEWEST_WORDS))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """The host is a step ahead and the device is slow, but it reads its own step's numbers."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    device = torch.device("cuda")
    buffer, busy = UploadBuffer(device, CudaLane(device)), torch.randn(2048, 2048, device=device)
    found = []
    for number in range(40):
        buffer.start_step()
        added = buffer.add(np.full(3000, number))
        buffer.send()
        for _ in range(4):
            busy = busy @ busy / 2048
        found.append(added.on_device.sum())
    assert torch.stack(found).tolist() == [3000 * number for number in range(40)]
