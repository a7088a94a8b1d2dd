"""The attention of a step as a decoder calls it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plimsoll_runtime.models.spec.attention import AttentionShape


class Attention(Protocol):
    """Attention for one step, made by a backend: writes a layer's keys and values to the cache (if any), then
    attends.
    """

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Return [T, heads, D] for query [T, heads, D], key and value [T, kv_heads, D], and sinks float32 [heads].

        `layer` is the index of the KV cache. If key and value are None, an earlier call has written those of the step's
        rows to it.
        """


class NormOfHeads(Protocol):
    """An RMS norm over each head: `weight` [heads + kv_heads, D] in float32, and `eps`."""

    weight: Tensor
    eps: float


@runtime_checkable
class RotatingAttention(Attention, Protocol):
    """Attention that normalises and rotates heads and writes them to the cache in one pass."""

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return the result of attention, [T, heads, D].

        `heads` [T, heads + 2 kv_heads, D] are queries, keys and values before norm (None: there is none) and rotation;
        `cos` and `sin` are [T, D / 2].
        """


def slopes_of(shape: AttentionShape, device: torch.device | None = None) -> Tensor | None:
    """Return ALiBi's slopes, float32 [heads], or None without ALiBi. Without a device they are on the CPU."""
    return None if shape.alibi is None else torch.tensor(shape.alibi.slopes, device=device)
