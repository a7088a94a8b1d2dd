"""What configs say of layers that are not attention: how many there are of each, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import DualShape, Mamba, Mamba2, Recurrent

ENDLESS = 2**20
"""Positions of a model whose config knows no end of them."""
OLD_TYPES = {"mamba": "linear_attention", "attention": "full_attention"}


def kinds(config: Config, field: str, default: Sequence[str], known: Sequence[str]) -> list[str]:
    """A kind for each layer, in the newer of its names. Raises ModelError for one that is not `known`."""
    found: object = config.values.get(field) or list(default)
    if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
        raise ModelError(f"config.json: {field} is {found!r}, which is no list of kinds of layers")
    named = [str(OLD_TYPES.get(kind, kind)) for kind in found]
    if unknown := [kind for kind in named if kind not in known]:
        raise UnsupportedFieldError(f"config.json: {field} has {unknown[0]!r}, which is not supported")
    if len(named) != config.layers():
        raise ModelError(f"config.json: {field} names {len(named)} layers, num_hidden_layers {config.layers()}")
    return named


def with_kinds(spec: DecoderSpec, kinds: Sequence[str], mixer: Recurrent) -> DecoderSpec:
    """With a recurrent mixer in place of attention on each layer that is linear."""
    layers = zip(kinds, spec.layers, strict=True)
    return replace(
        spec,
        layers=tuple(replace(layer, mixer=mixer) if kind == "linear_attention" else layer for kind, layer in layers),
    )


def rank_of(config: Config, field: str) -> int:
    """Of time steps: a number, or "auto"."""
    if config.values.get(field, "auto") == "auto":
        return ceil(config.get("hidden_size", int) / 16)
    return config.positive(field, int)


def taps_of(config: Config, field: str, default: int) -> int:
    """Over how many tokens a convolution goes. Raises ModelError for one over a single one: it would keep nothing."""
    taps = config.positive(field, int, default)
    if taps < 2:
        raise ModelError(f"config.json: {field} is {taps}, and a convolution goes over 2 tokens at least")
    return taps


def limits_of(config: Config, field: str = "time_step_limit") -> tuple[float, float]:
    """Of time steps: two numbers, the second of which may be infinite."""
    found = config.values.get(field)
    if found is None:
        return 0.0, float("inf")
    try:
        least, most = (float(each["__float__"] if isinstance(each, dict) else each) for each in found)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"config.json: {field} is {found!r}, which is not a least and a most") from error
    if not 0 <= least < most:
        raise ModelError(f"config.json: {field} is {found!r}: the first has to be below the second, and not below 0")
    return least, most


def dual_shape(config: Config, heads: int, head_dim: int, groups: int, state: int) -> DualShape:
    """Heads of Mamba 2. Raises ModelError where groups cannot share them."""
    if not min(heads, head_dim, groups, state) or heads % groups:
        raise ModelError(
            f"config.json: {heads} heads of {head_dim} dimensions and {state} states cannot be in {groups} groups"
        )
    return DualShape(heads, head_dim, groups, state)


def bamba_mixer(config: Config) -> Mamba2:
    """Mamba 2 as Bamba and its kin say it."""
    heads, expand = config.positive("mamba_n_heads", int, 128), config.positive("mamba_expand", int, 2)
    inner = expand * config.get("hidden_size", int)
    wanted = config.values.get("mamba_d_head", "auto")
    head_dim = inner // heads if wanted == "auto" else config.positive("mamba_d_head", int)
    if heads * head_dim != inner:
        raise ModelError(f"config.json: {heads} heads of {head_dim} dimensions are not {inner} wide")
    shape = dual_shape(
        config, heads, head_dim, config.get("mamba_n_groups", int, 1), config.get("mamba_d_state", int, 256)
    )
    bias = config.get("mamba_proj_bias", bool, default=False)
    return Mamba2(
        shape,
        taps_of(config, "mamba_d_conv", 4),
        config.get("rms_norm_eps", float, 1e-6),
        config.activation("hidden_act", "silu"),
        bias,
        bias,
        config.get("mamba_conv_bias", bool, default=True),
        limits=limits_of(config),
    )


def mamba_mixer(config: Config, *, inner: int, state: int, rank: int, taps: int, norm: Norm | None) -> Mamba:
    """The first Mamba. Raises ModelError for sizes of 0."""
    if not min(inner, state, rank):
        raise ModelError(f"config.json: {inner} columns, {state} states and time steps of rank {rank} cannot be")
    return Mamba(inner, state, rank, taps, config.activation("hidden_act", "silu"), norm=norm)
