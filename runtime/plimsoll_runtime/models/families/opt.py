"""OPT: a table of positions that starts at its third row, and ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import plain_decoder
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    layer="model.decoder.layers.{}",
    output="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
    norms=("self_attn_layer_norm", "", "final_layer_norm", ""),
    final_norm="model.decoder.final_layer_norm",
)
DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""
FIRST_POSITION = 2


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of OPTForCausalLM.

    Raises UnsupportedFieldError for the 350M size: it normalises after attention and MLP, and projects its embeddings.
    """
    config = Config({**DEFAULTS, **values})
    config.refuse_unless(
        do_layer_norm_before=True,
        _remove_final_layer_norm=False,
        layer_norm_elementwise_affine=True,
        word_embed_proj_dim=config.get("hidden_size", int),
    )
    heads, _, head_dim = config.heads()
    bias = config.get("enable_bias", bool, default=True)
    shape = AttentionShape(heads, heads, head_dim, head_dim**-0.5)
    positions = config.get("max_position_embeddings", int) + FIRST_POSITION
    return plain_decoder(
        "OPTForCausalLM",
        config,
        SelfAttention(shape, None, qkv_bias=bias, output_bias=bias),
        PlainMlp(config.get("ffn_dim", int), config.activation("activation_function"), bias=bias),
        names=NAMES,
        eps="layer_norm_eps",
        embedding=Embedding(positions=positions, first_position=FIRST_POSITION),
    )
