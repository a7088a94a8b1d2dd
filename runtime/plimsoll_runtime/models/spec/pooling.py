"""Pooling of models that do not generate, as their files describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.norm import Norm

PoolingKind = Literal["last", "first", "mean"]
"""The hidden state to use: a prompt's last one, its first one, or the mean of all."""

HeadActivation = Activation | Literal["tanh"]


@dataclass(frozen=True, slots=True)
class Dense:
    """y = activation(x W^T + b). `name` is the tensors' name without `.weight`."""

    name: str
    outputs: int
    bias: bool = True
    activation: HeadActivation | None = None


@dataclass(frozen=True, slots=True)
class VectorNorm:
    """A norm over a whole vector. `name` is the tensors' name without `.weight`."""

    name: str
    norm: Norm


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The logits of some tokens, from the model's output layer."""

    token_ids: tuple[int, ...]


HeadLayer = Dense | VectorNorm | TokenScores


@dataclass(frozen=True, slots=True)
class Pooling:
    """One vector for each prompt, passed through `layers` in order; `normalised`: scaled to length 1 at the end."""

    kind: PoolingKind
    layers: tuple[HeadLayer, ...] = ()
    normalised: bool = False
