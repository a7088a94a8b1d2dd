"""The decoder: token ids to hidden states to logits, by its spec."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.models.layer import DecoderLayer
from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.norm import RmsNorm
from plimsoll_runtime.models.rope import RopeTable
from plimsoll_runtime.models.spec import Attention, DecoderSpec


class Decoder:
    """A loaded model. It computes and keeps no state between calls: the cache belongs to the attention."""

    def __init__(
        self,
        spec: DecoderSpec,
        embedding: Tensor,
        layers: Sequence[DecoderLayer],
        norm: RmsNorm,
        head: Linear,
        weight_bytes: int,
    ) -> None:
        self.spec = spec
        self.weight_bytes = weight_bytes
        self.dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._ropes = {rope: RopeTable(rope, embedding.device) for rope in set(spec.ropes)}
        scale = spec.embedding_scale
        self._scale = None if scale is None else float(torch.tensor(scale).to(embedding.dtype))

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        x = functional.embedding(token_ids, self._embedding)
        if self._scale is not None:
            x = x * self._scale
        tables = {rope: table(positions, x.dtype) for rope, table in self._ropes.items()}
        for index, layer in enumerate(self._layers):
            cos, sin = tables[self.spec.ropes[index]]
            x = layer(index, x, cos, sin, attention)
        return self._norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        out = self._head(hidden).float()
        if self.spec.final_softcap is not None:
            out = torch.tanh(out / self.spec.final_softcap) * self.spec.final_softcap
        return out
