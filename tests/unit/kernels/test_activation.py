"""The gate's kernel equals its reference, and its reference torch's activations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.op import gated

ALL: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu", "relu2")

# A device's exp(100) is infinity, so that the sigmoid of -100 is 0, as it should be; NumPy, which interprets, warns.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def test_the_definition() -> None:
    gate_up = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    expected = torch.tensor([[3.0 / (1 + math.exp(-1)), -10.0 / (1 + math.exp(2))]])
    torch.testing.assert_close(gated(gate_up, "silu", implementation="reference"), expected)
    opened = functional.gelu(gate_up[:, :2], approximate="tanh") * gate_up[:, 2:]
    torch.testing.assert_close(gated(gate_up, "gelu_tanh", implementation="reference"), opened)


@pytest.mark.matrix(32)
@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 2304), (5, 1024)], ids=str)
def test_kernel(
    triton_device: str, dtype: torch.dtype, tolerance: float, activation: Activation, shape: tuple[int, int]
) -> None:
    gate_up = (10 * torch.randn(shape[0], 2 * shape[1], device=triton_device)).to(dtype)
    actual = gated(gate_up, activation, implementation="triton")
    expected = gated(gate_up, activation, implementation="reference")
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=st.integers(1, 5), size=st.integers(1, 3000), before=st.integers(0, 3), activation=st.sampled_from(ALL))
def test_any_shape(triton_device: str, rows: int, size: int, before: int, activation: Activation) -> None:
    """Also for rows that are not next to each other."""
    gate_up = torch.randn(rows, before + 2 * size, device=triton_device)[:, before:]
    actual = gated(gate_up, activation, implementation="triton")
    torch.testing.assert_close(actual, gated(gate_up, activation, implementation="reference"))


def test_the_largest_values(triton_device: str) -> None:
    """They neither overflow nor become NaN if the sigmoid is 0 or 1."""
    gate_up = torch.tensor([[-1e4, 1e4, -60.0, 60.0, 1.0, 1.0, 1.0, 1.0]], device=triton_device)
    for activation in ALL:
        actual = gated(gate_up, activation, implementation="triton")
        torch.testing.assert_close(actual, gated(gate_up, activation, implementation="reference"))


@pytest.mark.parametrize(
    ("shape", "activation", "message"),
    [
        ((2, 5), "silu", r"gate_up is \[2, 5\], expected \[T, 2 I\]"),
        ((2, 3, 4), "silu", r"expected \[T, 2 I\]"),
        ((2, 4), "tanh", "unknown activation 'tanh'; choose silu, gelu, gelu_tanh, relu, relu2"),
    ],
)
def test_refusals(shape: tuple[int, ...], activation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gated(torch.ones(shape), activation)
