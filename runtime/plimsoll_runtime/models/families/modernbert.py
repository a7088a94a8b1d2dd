"""ModernBERT (Warner et al., 2024): norms before attention and MLP, RoPE, gated MLPs, windows on 2 of 3 layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.encoder import HEADS_OF_TRAINING, chosen, whole_shape
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.pooling import Dense, Pooling, VectorNorm
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"vocab_size": 50_368, "max_position_embeddings": 8192, "local_attention": 128, "classifier_bias": False}
"""Defaults of missing fields."""
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
THETAS = {
    "full_attention": ("global_rope_theta", GLOBAL_THETA),
    "sliding_attention": ("local_rope_theta", LOCAL_THETA),
}
"""For each layer type: the field with the rope's base in older configs, and its default."""
NAMES = Names(
    embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    query_key_value=("attn.Wqkv",),
    output="attn.Wo",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    norms=("attn_norm", "", "mlp_norm", ""),
    final_norm="model.final_norm",
    beyond=HEADS_OF_TRAINING,
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of ModernBertModel. The first layer has no norm before attention."""
    config = Config({**DEFAULTS, **values})
    norm, bias = _norm(config), config.get("attention_bias", bool, default=False)
    every = config.positive("global_attn_every_n_layers", int, 3)
    kinds = config.layer_types(["sliding_attention" if i % every else "full_attention" for i in range(config.layers())])
    full = whole_shape(config)
    # A token sees those up to half a window away.
    shapes = {
        "full_attention": full,
        "sliding_attention": replace(full, window=config.get("local_attention", int) // 2 + 1),
    }
    ropes = {
        kind: config.rope_of_type(kind, full.head_dim, theta, base=field) for kind, (field, theta) in THETAS.items()
    }
    mlp = GatedMlp(
        config.get("intermediate_size", int),
        config.activation("hidden_activation", "gelu"),
        bias=config.get("mlp_bias", bool, default=False),
    )

    def layer(number: int, kind: str) -> LayerSpec:
        mixer = SelfAttention(shapes[kind], ropes[kind], qkv_bias=bias, output_bias=bias)
        return LayerSpec(mixer, mlp, norm, bare_mixer=number == 0)

    return DecoderSpec(
        "ModernBertModel",
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=tuple(layer(number, kind) for number, kind in enumerate(kinds)),
        max_positions=config.get("max_position_embeddings", int),
        final_norm=norm,
        embedding=Embedding(norm=norm),
        head=Head(tied=True),
        names=NAMES,
    )


def head(values: Mapping[str, Any], labels: int) -> Pooling:
    """Return the pooling of ModernBertForSequenceClassification."""
    config = Config({**DEFAULTS, **values})
    dense = Dense(
        "head.dense",
        config.get("hidden_size", int),
        bias=config.get("classifier_bias", bool),
        activation=config.activation("classifier_activation", "gelu"),
    )
    first = chosen(config, "classifier_pooling", ("cls", "mean"), "cls") == "cls"
    layers = (dense, VectorNorm("head.norm", _norm(config)), Dense("classifier", labels))
    return Pooling("first" if first else "mean", layers)


def _norm(config: Config) -> Norm:
    return Norm(config.get("norm_eps", float, 1e-5), "layer", biased=config.get("norm_bias", bool, default=False))
