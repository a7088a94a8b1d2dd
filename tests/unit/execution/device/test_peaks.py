"""The arithmetic of the roofline, and probes with plausible results."""

from __future__ import annotations

import pytest
import torch

from plimsoll_runtime.execution.device.peaks import Peaks, measure
from plimsoll_runtime.models.ops.cost import OpCost

MACHINE = Peaks(bandwidth=100.0, rate=1000.0)


@pytest.mark.parametrize(
    ("cost", "floor", "bound"),
    [
        (OpCost(200, 1000), 2.0, "memory"),
        (OpCost(100, 3000), 3.0, "compute"),
        (OpCost(100, 1000), 1.0, "memory"),
        (OpCost(), 0.0, "memory"),
    ],
)
def test_the_slower_of_the_two_is_the_bound(cost: OpCost, floor: float, bound: str) -> None:
    assert MACHINE.floor_seconds(cost) == floor
    assert MACHINE.bound(cost) == bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_can_be_probed(dtype: torch.dtype) -> None:
    found = measure(torch.device("cpu"), dtype)
    assert found.bandwidth > 0
    assert found.rate > 0
