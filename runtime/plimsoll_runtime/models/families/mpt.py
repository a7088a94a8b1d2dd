"""MPT: layer norms without biases, ALiBi, and no biases in products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import alternating_slopes_of, plain_decoder, renamed
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="transformer.wte",
    layer="transformer.blocks.{}",
    query_key_value=("attn.Wqkv",),
    output="attn.out_proj",
    gate_up=("ffn.up_proj",),
    down="ffn.down_proj",
    norms=("norm_1", "", "norm_2", ""),
    final_norm="transformer.norm_f",
)
FIELDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
}
DEFAULTS = {
    "vocab_size": 50_368,
    "d_model": 2048,
    "n_layers": 24,
    "n_heads": 16,
    "max_seq_len": 2048,
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""
COMPUTED = {"attn_type": "multihead_attention", "alibi": True, "prefix_lm": False, "qk_ln": False}


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MptForCausalLM."""
    config = Config({**renamed(values, FIELDS, DEFAULTS), "head_dim": None})
    config.refuse_unless(expansion_ratio=4, no_bias=True, logit_scale=None, embedding_fraction=1.0)
    attention = Config(config.mapping("attn_config"))
    attention.refuse_unless(**COMPUTED)
    heads, _, head_dim = config.heads()
    slopes = alternating_slopes_of(heads, attention.positive("alibi_bias_max", int, 8))
    scale = attention.get("softmax_scale", float, head_dim**-0.5)
    shape = AttentionShape(heads, heads, head_dim, scale, alibi=Alibi(slopes))
    spec = plain_decoder(
        "MptForCausalLM",
        config,
        SelfAttention(shape, None, clip=attention.get("clip_qkv", float, 0.0) or None),
        PlainMlp(4 * config.get("hidden_size", int), "gelu"),
        names=NAMES,
        eps="layer_norm_epsilon",
    )
    norm = Norm(spec.layers[0].norm.eps, "layer")
    return replace(with_layers(spec, lambda layer: replace(layer, norm=norm)), final_norm=norm)
