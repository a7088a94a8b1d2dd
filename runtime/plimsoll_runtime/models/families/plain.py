"""Decoders as they were before gates: layer norms with biases, and MLPs of one activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.layer import LayerSpec, Residual
from plimsoll_runtime.models.spec.names import Names
from plimsoll_runtime.models.spec.norm import Norm

TOKENS_ALONE = Embedding()


def plain_decoder(
    architecture: str,
    config: Config,
    mixer: SelfAttention,
    mlp: PlainMlp,
    *,
    names: Names,
    eps: str,
    residual: Residual = "sequential",
    embedding: Embedding = TOKENS_ALONE,
    head: Head,
) -> DecoderSpec:
    """All layers alike. The config's fields have Llama's names by now; `eps`: the one that the norms' epsilon has."""
    norm = Norm(config.get(eps, float, 1e-5), "layer", biased=True)
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(LayerSpec(mixer, mlp, norm, residual=residual),) * config.layers(),
        max_positions=config.get("max_position_embeddings", int),
        final_norm=norm,
        embedding=embedding,
        head=head,
        names=names,
    )


def renamed(values: Mapping[str, Any], fields: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A config under Llama's names: what is missing gets its default, and `fields` say which name stands for which."""
    found = {**defaults, **values}
    return {**found, **{ours: found[theirs] for theirs, ours in fields.items() if theirs in found}}


def inner_size(config: Config, field: str) -> int:
    """Of the MLP: four times the hidden size where the config does not say."""
    return config.get(field, int, 4 * config.get("hidden_size", int))
