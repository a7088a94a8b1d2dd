"""Gated activation in plain torch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.activation.kinds import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def gated_reference(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return activation(gate) x up `[T, I]` of gate_up `[T, 2 I]`: in each row I gates, then I values (up).

    Computed in float32, rounded once to gate_up's dtype.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate) * up).to(gate_up.dtype)
