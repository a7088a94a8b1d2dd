"""Falcon, with RoPE or ALiBi: one key head for all query heads, or one for each group of them; no biases by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import inner_size, plain_decoder, slopes_of
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Residual
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="transformer.word_embeddings",
    layer="transformer.h.{}",
    query_key_value=("self_attention.query_key_value",),
    output="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    norms=("input_layernorm", "", "post_attention_layernorm", ""),
    final_norm="transformer.ln_f",
)
DEFAULTS = {
    "vocab_size": 65024,
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "max_position_embeddings": 2048,
    "activation": "gelu",
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of FalconForCausalLM."""
    config = Config({**DEFAULTS, **values, "head_dim": None})
    grouped = config.get("new_decoder_architecture", bool, default=False)
    shared = config.get("multi_query", bool, default=True) and not grouped
    heads = config.get("num_attention_heads", int)
    kv_heads = 1 if shared else config.get("num_kv_heads", int, heads)
    config = Config({**config.values, "num_key_value_heads": kv_heads})
    heads, kv_heads, head_dim = config.heads()
    bias = config.get("bias", bool, default=False)
    norms = config.get("num_ln_in_parallel_attn", int, 2 if grouped else 1)
    parallel = grouped or config.get("parallel_attn", bool, default=True)
    side: Residual = "parallel" if grouped and norms == 2 else "parallel-one-norm"
    names = replace(NAMES, interleaved=not shared)
    if side == "parallel":
        names = replace(names, norms=("ln_attn", "", "ln_mlp", ""))
    turns = not config.get("alibi", bool, default=False)
    alibi = None if turns else Alibi(slopes_of(heads), coarse=True)
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5, alibi=alibi)
    return plain_decoder(
        "FalconForCausalLM",
        config,
        SelfAttention(shape, config.rope(head_dim) if turns else None, qkv_bias=bias, output_bias=bias),
        PlainMlp(inner_size(config, "ffn_hidden_size"), config.activation("activation"), bias=bias),
        names=names,
        eps="layer_norm_epsilon",
        residual=side if parallel else "sequential",
    )
