"""Gated activation, activation(gate) x up: checks the arguments and calls the Triton kernel or the reference."""

from __future__ import annotations

from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.reference import ACTIVATIONS, gated_reference
from plimsoll_kernels.dispatch import Implementation, check_floats, use_triton


def gated(gate_up: Tensor, activation: Activation, *, implementation: Implementation = "auto") -> Tensor:
    """Return activation(gate) x up of `[T, 2 I]`, gates first, in float32, rounded once -> contiguous `[T, I]`.

    Raises ValueError for a wrong shape, dtype or activation.
    """
    check_floats(gate_up=gate_up)
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.shape[1]:
        raise ValueError(f"gate_up is {list(gate_up.shape)}, expected [T, 2 I]")
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; choose {', '.join(ACTIVATIONS)}")
    if not use_triton(implementation, gate_up):
        return gated_reference(gate_up, activation)
    from plimsoll_kernels.activation.kernel import launch_gated

    return launch_gated(gate_up, activation)
