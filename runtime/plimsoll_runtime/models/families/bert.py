"""BERT (Devlin et al., 2019): learned positions, an embedding for each of two texts, norms after sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.encoder import (
    HEADS_OF_TRAINING,
    absolute_alone,
    bert_head,
    layer_norm,
    norms_behind,
)
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.pooling import Pooling
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"}
"""Defaults of missing fields."""
PREFIX = "bert"


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of BertModel."""
    config = Config({**DEFAULTS, **values})
    positions = config.get("max_position_embeddings", int)
    return with_positions("BertModel", config, PREFIX, first=0, max_positions=positions)


def head(values: Mapping[str, Any], labels: int) -> Pooling:
    """Return the pooling of BertForSequenceClassification."""
    return bert_head(Config(values), PREFIX, labels)


def with_positions(architecture: str, config: Config, prefix: str, *, first: int, max_positions: int) -> DecoderSpec:
    """Return the spec of an encoder with BERT's layers. `first`: the table row of the first position."""
    absolute_alone(config)
    embedding = Embedding(
        positions=config.get("max_position_embeddings", int),
        first_position=first,
        texts=config.get("type_vocab_size", int),
        norm=layer_norm(config),
    )
    mlp = PlainMlp(config.get("intermediate_size", int), config.activation("hidden_act"), bias=True)
    return norms_behind(architecture, config, mlp, embedding, names_of(prefix), max_positions=max_positions)


def names_of(prefix: str) -> Names:
    """Return BERT's tensor names with a prefix."""
    return Names(
        embedding=f"{prefix}.embeddings.word_embeddings",
        positions=f"{prefix}.embeddings.position_embeddings",
        texts=f"{prefix}.embeddings.token_type_embeddings",
        embedding_norm=f"{prefix}.embeddings.LayerNorm",
        layer=f"{prefix}.encoder.layer.{{}}",
        query_key_value=("attention.self.query", "attention.self.key", "attention.self.value"),
        output="attention.output.dense",
        gate_up=("intermediate.dense",),
        down="output.dense",
        norms=("", "attention.output.LayerNorm", "", "output.LayerNorm"),
        ignored=("embeddings.position_ids", "embeddings.token_type_ids"),
        beyond=(*HEADS_OF_TRAINING, f"{prefix}.pooler."),
    )
