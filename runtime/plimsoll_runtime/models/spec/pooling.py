"""What becomes of a prompt's hidden states where nothing is generated, as a model's files describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.norm import Norm

PoolingKind = Literal["last", "first", "mean"]
"""Of a prompt's hidden states: its last one, its first one, or the mean of all."""

HeadActivation = Activation | Literal["tanh"]


@dataclass(frozen=True, slots=True)
class Dense:
    """y = activation(x W^T + b), `name` being that of the tensors without `.weight`."""

    name: str
    outputs: int
    bias: bool = True
    activation: HeadActivation | None = None


@dataclass(frozen=True, slots=True)
class VectorNorm:
    """A norm over all of a vector, by the name of its tensors without `.weight`."""

    name: str
    norm: Norm


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The logits of some tokens alone, by the model's own output layer."""

    token_ids: tuple[int, ...]


HeadLayer = Dense | VectorNorm | TokenScores


@dataclass(frozen=True, slots=True)
class Pooling:
    """One vector of a prompt, through `layers` one after the other; in the end, where `normalised`, of length 1."""

    kind: PoolingKind
    layers: tuple[HeadLayer, ...] = ()
    normalised: bool = False
