"""The tensors of a decoder: what they are called, their shapes and bytes, as its spec says."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.spec import DecoderSpec

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
VECTOR_DTYPE = torch.float32
"""Of norms and biases, whatever the dtype of the matrices."""
_DERIVED = ("rotary_emb.inv_freq",)
_NAMED = 5
"""How many tensors an error lists."""


def expected_tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a spec needs, with its shape."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not spec.tied_embeddings:
        tensors[HEAD] = (spec.vocab_size, hidden)
    for i, shape in enumerate(spec.attention):
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        linears = {
            "self_attn.q_proj": (query, hidden, spec.qkv_bias),
            "self_attn.k_proj": (key, hidden, spec.qkv_bias),
            "self_attn.v_proj": (key, hidden, spec.qkv_bias),
            "self_attn.o_proj": (hidden, query, spec.output_bias),
            "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
            "mlp.up_proj": (inner, hidden, spec.mlp_bias),
            "mlp.down_proj": (hidden, inner, spec.mlp_bias),
        }
        prefix = f"model.layers.{i}"
        for name, (rows, columns, bias) in linears.items():
            tensors[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                tensors[f"{prefix}.{name}.bias"] = (rows,)
        tensors |= {f"{prefix}.{name}.weight": (hidden,) for name in norm_names(spec)}
        if spec.qk_norm:
            tensors |= {f"{prefix}.self_attn.{x}_norm.weight": (shape.head_dim,) for x in ("q", "k")}
    return tensors


def weight_bytes(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """Bytes that a decoder's weights take once loaded, its matrices in `dtype`."""
    shapes = expected_tensors(spec).values()
    return sum(prod(shape) * (VECTOR_DTYPE if len(shape) == 1 else dtype).itemsize for shape in shapes)


def check_tensors(spec: DecoderSpec, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse missing, unexpected and mis-shaped tensors by name.

    Buffers that are computed anyway are ignored, and the copy of tied embeddings that some files carry.
    """
    expected = expected_tensors(spec)
    ignored = {HEAD} if spec.tied_embeddings else set()
    unexpected = [n for n in found if n not in expected and n not in ignored and not n.endswith(_DERIVED)]
    wrong = [f"{n} {list(found[n])} instead of {list(s)}" for n, s in expected.items() if n in found and found[n] != s]
    missing = [n for n in expected if n not in found]
    for problem, names in (
        ("lack", missing),
        ("have unexpected tensors:", unexpected),
        ("have a wrong shape:", wrong),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise ModelError(f"{spec.architecture}: the weights {problem} {', '.join(names[:_NAMED])}{more}")


def norm_names(spec: DecoderSpec) -> tuple[str, ...]:
    """A layer's norms over the hidden dimension, in the order in which they come."""
    if spec.post_norms:
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        return tuple(f"{name}_layernorm" for name in names)
    return ("input_layernorm", "post_attention_layernorm")
