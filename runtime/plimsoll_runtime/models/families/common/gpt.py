"""Decoders without gated MLPs: layer norms with biases, plain MLPs, and ALiBi slopes (Press et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log2
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head, LayerSpec, Residual
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

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
    head_bias: bool = False,
) -> DecoderSpec:
    """Return a decoder with equal layers. `config` has Llama's field names; `eps` is the field of the norms'
    epsilon.
    """
    norm = Norm(config.get(eps, float, 1e-5), "layer", biased=True)
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(LayerSpec(mixer, mlp, norm, residual=residual),) * config.layers(),
        max_positions=config.get("max_position_embeddings", int),
        final_norm=norm,
        embedding=embedding,
        head=Head(tied=config.get("tie_word_embeddings", bool, default=False), bias=head_bias),
        names=names,
    )


def renamed(values: Mapping[str, Any], fields: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in which the family's field names are copied to Llama's.

    `fields`: the family's name of a field -> Llama's name. `defaults`: values of missing fields, under either name.
    """
    found = {**defaults, **values}
    return {**found, **{ours: found[theirs] for theirs, ours in fields.items() if theirs in found}}


def inner_size(config: Config, field: str) -> int:
    """Return the MLP's inner size; by default four times the hidden size."""
    return config.get(field, int, 4 * config.get("hidden_size", int))


MAX_HEADS = 4096
"""Most heads with ALiBi: no model has more. A larger number means a damaged config, whose slopes would fill the
memory."""


def slopes_of(heads: int) -> tuple[float, ...]:
    """Return the ALiBi slopes of BLOOM and Falcon.

    With n, the largest power of two up to `heads`, they are the slopes of n heads, then every second slope of 2n heads.
    """
    _check(heads)
    whole = 2 ** floor(log2(heads))
    return (*_geometric(whole), *_geometric(2 * whole)[::2][: heads - whole])


def alternating_slopes_of(heads: int, largest: int) -> tuple[float, ...]:
    """Return the ALiBi slopes of MPT: powers of 1/2 whose equally spaced exponents end at `largest`.

    If `heads` is no power of two, they are the first of this list: of the slopes for the next higher power of two, the
    second, fourth and so on, then the first, third and so on.
    """
    _check(heads)
    every = _geometric(2 ** ceil(log2(heads)), largest)
    return every if len(every) == heads else (*every[1::2], *every[::2])[:heads]


def _check(heads: int) -> None:
    if heads > MAX_HEADS:
        raise ModelError(f"config.json: {heads} heads exceed the limit of {MAX_HEADS} for ALiBi")


def _geometric(heads: int, largest: int = 8) -> tuple[float, ...]:
    return tuple(2.0 ** (-largest * (i + 1) / heads) for i in range(heads))
