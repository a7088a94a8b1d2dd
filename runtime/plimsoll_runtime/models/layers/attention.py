"""A step's attention, as a decoder sees it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plimsoll_runtime.models.spec.attention import AttentionShape


class Attention(Protocol):
    """Made by a backend for one step: writes a layer's keys and values to the cache, if there are any, then attends."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """query [T, heads, D], key and value [T, kv_heads, D], sinks float32 [heads] -> [T, heads, D].

        No key and no value: those of the step's rows have been written by an earlier call.
        """


class NormOfHeads(Protocol):
    """A root mean square norm over each head: `weight` [heads + kv_heads, D] in float32, and `eps`."""

    weight: Tensor
    eps: float


@runtime_checkable
class RotatingAttention(Attention, Protocol):
    """One that norms and rotates heads on their way into the cache, in one pass over them."""

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """heads [T, heads + 2 kv_heads, D], as the product leaves them; cos, sin [T, D / 2] -> [T, heads, D]."""


def slopes_of(shape: AttentionShape, device: torch.device | None = None) -> Tensor | None:
    """float32 [heads] of ALiBi, where there is one; None for the device: a CPU."""
    return None if shape.alibi is None else torch.tensor(shape.alibi.slopes, device=device)
