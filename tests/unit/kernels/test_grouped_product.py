"""One product for all groups equals a product for each, for any rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.grouped_product.op import grouped_product


@dataclass
class Case:
    """Rows within wider ones; matrices and biases of groups without rows are NaN."""

    rows: Tensor
    weights: Tensor
    ends: Tensor
    bias: Tensor | None

    def run(self, implementation: Any) -> Tensor:
        return grouped_product(self.rows, self.weights, self.ends, self.bias, implementation=implementation)


def make(
    sizes: list[int],
    *,
    inputs: int = 64,
    outputs: int = 48,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    wide = torch.randn(sum(sizes), inputs + 3).to(device, dtype)
    weights = (torch.randn(len(sizes), outputs, inputs) / math.sqrt(inputs)).to(device, dtype)
    biases = torch.randn(len(sizes), outputs).to(device, dtype) if bias else None
    empty = torch.tensor([size == 0 for size in sizes], device=device)
    for tensor in (weights, biases):
        if tensor is not None:
            tensor[empty] = math.nan
    ends = torch.tensor(sizes).cumsum(0).to(device, torch.int32)
    return Case(wide[:, :inputs], weights, ends, biases)


def assert_equal(case: Case, tolerance: float) -> None:
    actual, expected = case.run("triton"), case.run("reference")
    assert not actual.isnan().any()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.matrix(5)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    "sizes",
    [[1], [0, 0, 1, 0], [3, 0, 17, 16, 0], [70, 1, 0, 130]],
    ids=["one row", "one row among empty groups", "few rows", "many rows"],
)
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, sizes: list[int], bias: bool) -> None:
    if triton_device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    assert_equal(make(sizes, bias=bias, inputs=128, outputs=160, dtype=dtype, device=triton_device), tolerance)


@pytest.mark.long
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    sizes=st.lists(st.one_of(st.just(0), st.integers(1, 5), st.integers(14, 70)), min_size=1, max_size=9).filter(any),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 150),
    bias=st.booleans(),
    half=st.booleans(),
)
def test_any_shape(triton_device: str, sizes: list[int], inputs: int, outputs: int, bias: bool, half: bool) -> None:
    dtype = torch.float16 if half else torch.float32
    case = make(sizes, inputs=inputs, outputs=outputs, bias=bias, dtype=dtype, device=triton_device)
    assert_equal(case, 2e-3 if half else 1e-5)


@given(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=20), block=st.sampled_from([16, 64]))
def test_there_are_tiles_for_all_rows(sizes: list[int], block: int) -> None:
    pytest.importorskip("triton")
    from plimsoll_kernels.grouped_product.kernel import most_tiles

    assert sum(-(-size // block) for size in sizes) <= most_tiles(sum(sizes), len(sizes), block)


def test_few_rows_take_the_smallest_tiles(triton_device: str) -> None:
    from plimsoll_kernels.grouped_product.kernel import config_for

    assert [config_for(rows, 8).block_m for rows in (1, 128, 129, 4096)] == [16, 16, 64, 64]
    case = make([40, 0, 9], device=triton_device)
    assert_equal(case, 1e-5)


def test_without_rows(triton_device: str) -> None:
    assert make([0, 0], device=triton_device).run("triton").shape == (0, 48)


def refusals() -> list[Any]:
    case = make([2, 1], bias=True)
    assert case.bias is not None
    return [
        (replace(case, rows=case.rows[0]), "do not match"),
        (replace(case, weights=case.weights[:0]), "at least one group"),
        (replace(case, rows=case.rows.half()), "weights is torch.float32 on cpu, but rows is torch.float16"),
        (replace(case, rows=case.rows[:, :32]), r"rows is \[3, 32\], expected \[3, 64\]"),
        (replace(case, weights=torch.randn(48, 2, 64).transpose(0, 1)), "must be contiguous"),
        (replace(case, ends=case.ends[:1]), r"ends is \[1\], expected \[2\]"),
        (replace(case, ends=case.ends.long()), "ends is torch.int64 on cpu"),
        (replace(case, ends=case.ends.to("meta")), "ends is torch.int32 on meta"),
        (replace(case, bias=case.bias.half()), "bias is torch.float16 on cpu, but rows is torch.float32"),
        (replace(case, bias=case.bias[:, :5]), r"bias is \[2, 5\], expected \[2, 48\]"),
    ]


@pytest.mark.parametrize(("case", "message"), refusals())
def test_refusals(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run("auto")
