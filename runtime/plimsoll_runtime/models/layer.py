"""One decoder layer: attention and a gated MLP, each with its norms and its residual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.norm import QkNorm, RmsNorm
from plimsoll_runtime.models.rope import rotate
from plimsoll_runtime.models.spec import Activation, Attention, AttentionShape, DecoderSpec
from plimsoll_runtime.models.weights import LayerWeights, LinearWeights

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


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
        query_key, value = torch.split(heads, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        if self._norm is not None:
            query_key = self._norm(query_key)
        query, key = torch.split(rotate(query_key, cos, sin), [shape.heads, shape.kv_heads], dim=1)
        return self._output(attention(layer, query, key, value).reshape(x.shape[0], -1))


class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    def __init__(self, spec: DecoderSpec, weights: LayerWeights) -> None:
        self._gate_up = Linear(torch.cat([weights.gate.weight, weights.up.weight]), weights.gate_up_bias)
        self._down = _linear(weights.down)
        self._activation = _ACTIVATIONS[spec.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); Gemma norms what each adds as well."""

    def __init__(self, spec: DecoderSpec, shape: AttentionShape, weights: LayerWeights) -> None:
        norms = [RmsNorm(weight, spec.norm_eps, offset=spec.norm_offset) for weight in weights.norms]
        self._attention = AttentionBlock(spec, shape, weights)
        self._mlp = GatedMlp(spec, weights)
        self._attention_post_norm: RmsNorm | None = None
        self._mlp_post_norm: RmsNorm | None = None
        if spec.post_norms:
            self._attention_norm, self._attention_post_norm, self._mlp_norm, self._mlp_post_norm = norms
        else:
            self._attention_norm, self._mlp_norm = norms

    def __call__(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        added = self._attention(layer, self._attention_norm(x), cos, sin, attention)
        x = x + (added if self._attention_post_norm is None else self._attention_post_norm(added))
        added = self._mlp(self._mlp_norm(x))
        return x + (added if self._mlp_post_norm is None else self._mlp_post_norm(added))


def _linear(weights: LinearWeights) -> Linear:
    return Linear(weights.weight, weights.bias)
