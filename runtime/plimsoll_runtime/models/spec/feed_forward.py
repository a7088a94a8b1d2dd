"""What a layer does to each token by itself, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.activation.reference import Activation


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """down(activation(up(x)))."""

    inner: int
    activation: Activation
    bias: bool = False


FeedForward = GatedMlp | PlainMlp
"""One of these."""
