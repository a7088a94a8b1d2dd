"""Granite: Llama with four numbers that scale embeddings, scores, what is added, and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.changing import with_layers, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """GraniteForCausalLM."""
    config = Config(values)
    return scaled(config, gated_decoder("GraniteForCausalLM", config))


def scaled(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """With Granite's four numbers."""
    scale = config.positive("attention_multiplier", float, 1.0)
    residual = config.get("residual_multiplier", float, 1.0)
    mixers = with_mixers(spec, lambda mixer: replace(mixer, shape=replace(mixer.shape, scale=scale)))
    return replace(
        with_layers(mixers, lambda layer: replace(layer, scale=residual)),
        embedding=Embedding(scale=config.get("embedding_multiplier", float, 1.0)),
        head=replace(spec.head, scale=1.0 / config.positive("logits_scaling", float, 1.0)),
    )
