"""The rotation's kernel equals its reference; the reference rotates pairs and keeps lengths."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.rotary.op import rotary

SHAPES = [(1, 1, 2, 2), (3, 5, 64, 64), (7, 2, 96, 32), (2, 12, 256, 256), (4, 3, 80, 20)]


def case(rows: int, heads: int, size: int, rotated: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    angles = torch.randn(rows, rotated // 2) * 100
    return torch.randn(rows, heads, size).to(dtype), angles.cos(), angles.sin()


def test_a_quarter_turn() -> None:
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 9.0]]])
    cos, sin = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    turned = rotary(heads, cos, sin, implementation="reference")
    assert turned.tolist() == [[[-3.0, 2.0, 1.0, 4.0, 9.0]]]


def test_lengths_are_kept() -> None:
    heads, cos, sin = case(5, 3, 64, 64, torch.float32)
    turned = rotary(heads, cos, sin, implementation="reference")
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, shape: tuple[int, int, int, int]) -> None:
    heads, cos, sin = (x.to(triton_device) for x in case(*shape, dtype))
    actual = rotary(heads, cos, sin, implementation="triton")
    expected = rotary(heads, cos, sin, implementation="reference")
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_heads_inside_a_wider_tensor(triton_device: str) -> None:
    heads, cos, sin = (x.to(triton_device) for x in case(6, 9, 32, 32, torch.float32))
    inside = heads[:, 2:6]
    torch.testing.assert_close(
        rotary(inside, cos, sin, implementation="triton"),
        rotary(inside.contiguous(), cos, sin, implementation="reference"),
    )


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=st.integers(1, 6), heads=st.integers(1, 9), half=st.integers(1, 40), rest=st.integers(0, 40))
def test_any_shape(triton_device: str, rows: int, heads: int, half: int, rest: int) -> None:
    tensors = [x.to(triton_device) for x in case(rows, heads, 2 * half + rest, 2 * half, torch.float32)]
    torch.testing.assert_close(rotary(*tensors, implementation="triton"), rotary(*tensors, implementation="reference"))


@pytest.mark.parametrize(
    ("heads", "table", "message"),
    [
        ((2, 3, 8), (2, 5), "0 < R <= D"),
        ((2, 3, 8), (3, 4), r"cos is \[3, 4\], expected \[2, 4\]"),
        ((2, 24), (2, 4), r"expected \[T, H, D\]"),
    ],
)
def test_refusals(heads: tuple[int, ...], table: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotary(torch.zeros(heads), torch.zeros(table), torch.zeros(table))


def test_nan_is_not_hidden() -> None:
    heads, cos, sin = case(1, 1, 4, 4, torch.float32)
    heads[0, 0, 1] = math.nan
    assert rotary(heads, cos, sin).isnan().sum() == 2
