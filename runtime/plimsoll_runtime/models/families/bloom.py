"""BLOOM: layer norms, biases, ALiBi, and a norm after the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import plain_decoder, renamed, slopes_of
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    layer="transformer.h.{}",
    query_key_value=("self_attention.query_key_value",),
    interleaved=True,
    output="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="transformer.ln_f",
)
FIELDS = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "seq_length": "max_position_embeddings",
}
DEFAULTS = {
    "vocab_size": 250_880,
    "hidden_size": 64,
    "n_layer": 2,
    "n_head": 8,
    "seq_length": 2048,
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of BloomForCausalLM. Contexts end at `seq_length`, the training length (ALiBi has no limit)."""
    config = Config({**renamed(values, FIELDS, DEFAULTS), "head_dim": None})
    config.refuse_unless(apply_residual_connection_post_layernorm=False)
    heads, _, head_dim = config.heads()
    shape = AttentionShape(heads, heads, head_dim, head_dim**-0.5, alibi=Alibi(slopes_of(heads)))
    return plain_decoder(
        "BloomForCausalLM",
        config,
        SelfAttention(shape, None, qkv_bias=True, output_bias=True),
        PlainMlp(4 * config.get("hidden_size", int), "gelu_tanh", bias=True),
        names=NAMES,
        eps="layer_norm_epsilon",
        embedding=Embedding(norm=Norm(config.get("layer_norm_epsilon", float, 1e-5), "layer", biased=True)),
    )
