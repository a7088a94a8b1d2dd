"""The norm's kernel equals its reference, and its reference the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_kernels.rms_norm.op import add_rms_norm, rms_norm

EPS = 1e-6
RAGGED = [(1, 1), (3, 64), (5, 100), (2, 1536), (1, 5120)]


def test_the_definition() -> None:
    x = torch.tensor([[3.0, 4.0]])
    expected = x / (12.5 + 0.5) ** 0.5 * torch.tensor([2.0, -1.0])
    actual = rms_norm(x, torch.tensor([2.0, -1.0]), 0.5, implementation="reference")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("size", RAGGED, ids=str)
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, size: tuple[int, int]) -> None:
    x = torch.randn(size, device=triton_device).to(dtype)
    weight = torch.randn(size[1], device=triton_device)
    actual = rms_norm(x, weight, EPS, implementation="triton")
    expected = rms_norm(x, weight, EPS, implementation="reference")
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_kernel_adds_the_residual(triton_device: str, dtype: torch.dtype, tolerance: float) -> None:
    wide = torch.randn(7, 3, 200, device=triton_device).to(dtype)
    x, residual = wide[..., :96], wide[..., 100:196]  # rows that are not next to each other
    weight = torch.randn(96, device=triton_device).to(dtype)
    actual = add_rms_norm(x, residual, weight, EPS, implementation="triton")
    expected = add_rms_norm(x, residual, weight, EPS, implementation="reference")
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_kernel_takes_a_weight_for_each_head(triton_device: str, dtype: torch.dtype, tolerance: float) -> None:
    heads = torch.randn(6, 5, 48, device=triton_device).to(dtype)[:, :3]  # the rest are another tensor's heads
    weight = torch.randn(3, 48, device=triton_device)
    actual = rms_norm(heads, weight, EPS, implementation="triton")
    expected = [rms_norm(heads[:, i], weight[i], EPS, implementation="reference") for i in range(3)]
    torch.testing.assert_close(actual, torch.stack(expected, 1), rtol=tolerance, atol=tolerance)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=st.integers(1, 9), columns=st.integers(1, 300), seed=st.integers(0, 99))
def test_any_shape(triton_device: str, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(s, generator=generator).to(triton_device) for s in ((rows, columns), (columns,)))
    actual = rms_norm(x, weight, EPS, implementation="triton")
    torch.testing.assert_close(actual, rms_norm(x, weight, EPS, implementation="reference"))


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.ones(2, 4), torch.ones(5), r"weight is \[5\], expected \[4\]"),
        (torch.ones(2, 4), torch.ones(3, 4), r"weight is \[3, 4\], expected \[2, 4\]"),
        (torch.ones(2, 4, dtype=torch.int64), torch.ones(4), "x is torch.int64; kernels take float32"),
        (torch.ones(4, 2).T, torch.ones(4), "last dimension of x has stride 2"),
        (torch.ones(2, 4), torch.ones(4, device="meta"), "weight is on meta, but x is on cpu"),
    ],
)
def test_refusals(x: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, EPS)


def test_a_residual_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"residual is \[3, 4\], expected \[2, 4\]"):
        add_rms_norm(torch.ones(2, 4), torch.ones(3, 4), torch.ones(4), EPS)
