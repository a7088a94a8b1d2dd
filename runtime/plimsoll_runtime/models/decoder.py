"""The decoder: token ids to hidden states to logits, by its spec; here with torch, on any device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.models.layer import DecoderLayer
from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.norm import ResidualNorm
from plimsoll_runtime.models.rope import RopeTable
from plimsoll_runtime.models.spec import Attention, DecoderSpec
from plimsoll_runtime.models.weights import WeightReader


class Decoder(Protocol):
    """A loaded model. It computes and keeps no state between calls: the cache belongs to the attention."""

    spec: DecoderSpec
    dtype: torch.dtype
    weight_bytes: int

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab], valid until the next call."""


class TorchDecoder:
    """A decoder of torch's ops, one after the other."""

    def __init__(self, reader: WeightReader) -> None:
        spec = reader.spec
        self.spec = spec
        self.dtype = reader.dtype
        self._embedding = reader.embedding()
        self._head = Linear(reader.head(self._embedding))
        self._layers = [
            DecoderLayer(spec, shape, weights) for shape, weights in zip(spec.attention, reader.layers(), strict=True)
        ]
        self._norm = ResidualNorm(reader.final_norm(), spec.norm_eps, offset=spec.norm_offset)
        self._ropes = {rope: RopeTable(rope, reader.device) for rope in set(spec.ropes)}
        self._scale = rounded_scale(spec, reader.dtype)
        self.weight_bytes = reader.nbytes

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        x = functional.embedding(token_ids, self._embedding)
        if self._scale is not None:
            x = x * self._scale
        tables = {rope: table(positions, x.dtype) for rope, table in self._ropes.items()}
        added: Tensor | None = None
        for index, layer in enumerate(self._layers):
            cos, sin = tables[self.spec.ropes[index]]
            x, added = layer(index, x, added, cos, sin, attention)
        return self._norm(x, added)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        return capped(self.spec, self._head(hidden).float())


def rounded_scale(spec: DecoderSpec, dtype: torch.dtype) -> float | None:
    """What embeddings are multiplied by, rounded to the dtype of the run."""
    return None if spec.embedding_scale is None else float(torch.tensor(spec.embedding_scale).to(dtype))


def capped(spec: DecoderSpec, logits: Tensor) -> Tensor:
    """Logits below the cap that the spec may set, softly."""
    if spec.final_softcap is None:
        return logits
    return torch.tanh(logits / spec.final_softcap) * spec.final_softcap
