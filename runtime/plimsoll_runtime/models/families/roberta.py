"""RoBERTa (Liu et al., 2019), XLM-R (Conneau et al., 2020): BERT whose positions start after the padding row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import bert
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.pooling import Dense, Pooling

DEFAULTS = {
    "vocab_size": 50_265,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
    "hidden_act": "gelu",
}
"""Defaults of missing fields."""
PREFIX = "roberta"


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of RobertaModel."""
    config = Config({**DEFAULTS, **values})
    first, rows = config.get("pad_token_id", int) + 1, config.get("max_position_embeddings", int)
    if rows <= first:
        raise ModelError(
            f"config.json: max_position_embeddings is {rows}; it must be more than {first} (pad_token_id + 1)"
        )
    return bert.with_positions("RobertaModel", config, PREFIX, first=first, max_positions=rows - first)


def head(values: Mapping[str, Any], labels: int) -> Pooling:
    """Return the pooling of RobertaForSequenceClassification."""
    hidden = Config(values).get("hidden_size", int)
    dense = Dense("classifier.dense", hidden, activation="tanh")
    return Pooling("first", (dense, Dense("classifier.out_proj", labels)))
