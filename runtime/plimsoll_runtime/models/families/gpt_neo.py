"""GPT-Neo: GPT-2 with unscaled scores, and windows on every second layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import gpt2
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import inner_size, plain_decoder, renamed
from plimsoll_runtime.models.families.common.variants import with_windows
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import PlainMlp

NAMES = replace(
    gpt2.NAMES,
    query_key_value=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    output="attn.attention.out_proj",
    transposed=False,
    ignored=(".attn.attention.bias", ".attn.attention.masked_bias"),
)
FIELDS = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
DEFAULTS = {
    "vocab_size": 50257,
    "hidden_size": 2048,
    "max_position_embeddings": 2048,
    "num_heads": 16,
    "num_layers": 24,
    "activation_function": "gelu_new",
    "window_size": 256,
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GPTNeoForCausalLM."""
    config = Config(renamed(values, FIELDS, DEFAULTS))
    heads, _, head_dim = config.heads()
    spec = plain_decoder(
        "GPTNeoForCausalLM",
        config,
        SelfAttention(AttentionShape(heads, heads, head_dim, 1.0), None, output_bias=True),
        PlainMlp(inner_size(config, "intermediate_size"), config.activation("activation_function"), bias=True),
        names=NAMES,
        eps="layer_norm_epsilon",
        embedding=Embedding(positions=config.get("max_position_embeddings", int)),
    )
    window = config.get("window_size", int)
    return with_windows(spec, [window if local else None for local in _local(config, spec.num_layers)])


def _local(config: Config, layers: int) -> list[bool]:
    """Return for each layer whether it is local: whether it has a window.

    Reads `attention_layers`, a list, or `attention_types` ([[["global", "local"], 12]]: 12 repeats).
    """
    kinds = config.values.get("attention_layers")
    if kinds is None:
        try:
            types = config.values.get("attention_types") or [[["global", "local"], -(-layers // 2)]]
            kinds = [kind for row, times in types for _ in range(min(times, layers)) for kind in row]
        except (TypeError, ValueError) as error:
            raise ModelError(f"config.json: attention_types must be a list of (kinds, times): {error}") from error
    if not isinstance(kinds, list) or len(kinds) < layers or not set(kinds[:layers]) <= {"global", "local"}:
        raise ModelError(f"config.json: attention_layers must have global or local for each of {layers} layers")
    return [kind == "local" for kind in kinds[:layers]]
