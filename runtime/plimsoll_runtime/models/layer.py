"""One decoder layer: attention and a gated MLP, each with its norms and its residual."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.norm import QkNorm, ResidualNorm, RmsNorm
from plimsoll_runtime.models.rope import rotate
from plimsoll_runtime.models.spec import Attention, AttentionShape, DecoderSpec
from plimsoll_runtime.models.weights import LayerWeights, LinearWeights


@runtime_checkable
class RotatingAttention(Attention, Protocol):
    """A step's attention that norms and rotates heads on their way into the cache, in one pass over them."""

    def of_heads(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor, norm: QkNorm | None) -> Tensor:
        """heads [T, heads + 2 kv_heads, D], as the product leaves them; cos, sin [T, D / 2] -> [T, heads, D]."""


class AttentionBlock:
    """Queries, keys and values in one product, norms over heads, rotation, attention, output."""

    def __init__(self, spec: DecoderSpec, shape: AttentionShape, weights: LayerWeights) -> None:
        self._shape = shape
        self._qkv = _linear(weights.query_key_value)
        self._output = _linear(weights.output)
        self._norm = None if weights.head_norms is None else QkNorm(spec, shape, *weights.head_norms)

    def __call__(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        shape = self._shape
        heads = self._qkv(x).view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim)
        if isinstance(attention, RotatingAttention):
            attended = attention.of_heads(layer, heads, cos, sin, self._norm)
        else:
            attended = self._plain(layer, heads, cos, sin, attention)
        return self._output(attended.reshape(x.shape[0], -1))

    def _plain(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """Norm, rotation and attention one after the other."""
        shape = self._shape
        query_key, value = torch.split(heads, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        if self._norm is not None:
            query_key = self._norm(query_key)
        query, key = torch.split(rotate(query_key, cos, sin), [shape.heads, shape.kv_heads], dim=1)
        return attention(layer, query, key, value)


class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    def __init__(self, spec: DecoderSpec, weights: LayerWeights) -> None:
        self._gate_up = Linear(torch.cat([weights.gate.weight, weights.up.weight]), weights.gate_up_bias)
        self._down = _linear(weights.down)
        self._activation = spec.activation

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        gate_up = self._gate_up(x)
        if x.is_cuda:
            return self._down(gated(gate_up, self._activation))
        gate, up = gate_up.chunk(2, dim=-1)
        return self._down(ACTIVATIONS[self._activation](gate) * up)


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); Gemma norms what each adds as well.

    What the MLP adds is left to whoever norms next: a sum and the norm after it are one pass over memory.
    """

    def __init__(self, spec: DecoderSpec, shape: AttentionShape, weights: LayerWeights) -> None:
        self._attention = AttentionBlock(spec, shape, weights)
        self._mlp = GatedMlp(spec, weights)
        self._attention_post_norm: RmsNorm | None = None
        self._mlp_post_norm: RmsNorm | None = None
        if spec.post_norms:
            attention, attention_post, mlp, mlp_post = weights.norms
            self._attention_post_norm = RmsNorm(attention_post, spec.norm_eps, offset=spec.norm_offset)
            self._mlp_post_norm = RmsNorm(mlp_post, spec.norm_eps, offset=spec.norm_offset)
        else:
            attention, mlp = weights.norms
        self._attention_norm = ResidualNorm(attention, spec.norm_eps, offset=spec.norm_offset)
        self._mlp_norm = ResidualNorm(mlp, spec.norm_eps, offset=spec.norm_offset)

    def __call__(
        self, layer: int, x: Tensor, added: Tensor | None, cos: Tensor, sin: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """(x, what is still to be added to it), both [T, hidden], of the layer before (None: nothing) and of this."""
        normed, x = self._attention_norm(x, added)
        added = self._attention(layer, normed, cos, sin, attention)
        if self._attention_post_norm is not None:
            added = self._attention_post_norm(added)
        normed, x = self._mlp_norm(x, added)
        added = self._mlp(normed)
        return x, added if self._mlp_post_norm is None else self._mlp_post_norm(added)


def _linear(weights: LinearWeights) -> Linear:
    return Linear(weights.weight, weights.bias)
