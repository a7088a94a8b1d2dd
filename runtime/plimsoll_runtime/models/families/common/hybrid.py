"""Reads configs of recurrent layers: the kind of each layer, and the sizes of mixers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import DualShape, Mamba, Mamba2, Recurrent

ENDLESS = 2**20
"""Positions of a model whose config has no limit."""
OLD_TYPES = {"mamba": "linear_attention", "attention": "full_attention"}


def kinds(config: Config, field: str, default: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the kind of each layer; old names (OLD_TYPES) are replaced. Raises ModelError if a kind is not `known`."""
    found: object = config.values.get(field) or list(default)
    if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
        raise ModelError(f"config.json: {field} is {found!r}; it must be a list of layer kinds")
    named = [str(OLD_TYPES.get(kind, kind)) for kind in found]
    if unknown := [kind for kind, name in zip(found, named, strict=True) if name not in known]:
        raise UnsupportedFieldError(f"config.json: {field} has the unsupported value {unknown[0]!r}")
    if len(named) != config.layers():
        raise ModelError(f"config.json: {field} has {len(named)} layers, num_hidden_layers is {config.layers()}")
    return named


def with_kinds(spec: DecoderSpec, kinds: Sequence[str], mixer: Recurrent) -> DecoderSpec:
    """Return a spec with the recurrent mixer instead of attention on each layer of the kind linear_attention."""
    layers = zip(kinds, spec.layers, strict=True)
    return replace(
        spec,
        layers=tuple(replace(layer, mixer=mixer) if kind == "linear_attention" else layer for kind, layer in layers),
    )


def rank_of(config: Config, field: str) -> int:
    """Return the rank of time steps: a number, or hidden size / 16, rounded up, if the field is "auto" or missing."""
    if config.values.get(field, "auto") == "auto":
        return ceil(config.get("hidden_size", int) / 16)
    return config.positive(field, int)


def taps_of(config: Config, field: str, default: int) -> int:
    """Return the number of tokens in a convolution. Raises ModelError below 2, because that would need no state."""
    taps = config.positive(field, int, default)
    if taps < 2:
        raise ModelError(f"config.json: {field} is {taps}; a convolution needs at least 2 tokens")
    return taps


def limits_of(config: Config, field: str = "time_step_limit") -> tuple[float, float]:
    """Return the lower and upper limit of time steps; the upper may be infinite."""
    found = config.values.get(field)
    if found is None:
        return 0.0, float("inf")
    try:
        least, most = (float(each["__float__"] if isinstance(each, dict) else each) for each in found)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"config.json: {field} is {found!r}; it must be a lower and an upper limit") from error
    if not 0 <= least < most:
        raise ModelError(f"config.json: {field} is {found!r}; the limits must be ascending and not negative")
    return least, most


def dual_shape(config: Config, heads: int, head_dim: int, groups: int, state: int) -> DualShape:
    """Return Mamba 2's shape. Raises ModelError if a size is 0 or the heads are not a multiple of the groups."""
    if not min(heads, head_dim, groups, state) or heads % groups:
        raise ModelError(
            f"config.json: {heads} heads, {head_dim} head dimensions, {state} states and {groups} groups must all be "
            "positive, and the heads a multiple of the groups"
        )
    return DualShape(heads, head_dim, groups, state)


def mamba2_mixer(config: Config, shape: DualShape, eps: float, activation: Activation) -> Mamba2:
    """Return a Mamba 2 mixer; its convolution, biases and limits are config fields of Mamba 2 and Nemotron-H."""
    bias = config.get("use_bias", bool, default=False)
    conv_bias = config.get("use_conv_bias", bool, default=True)
    taps, limits = taps_of(config, "conv_kernel", 4), limits_of(config)
    return Mamba2(shape, taps, eps, activation, bias, bias, conv_bias, limits=limits)


def bamba_shape(config: Config, inner: int) -> DualShape:
    """Return Mamba 2's shape from Bamba's config fields. `inner`: the columns of all heads together."""
    heads, wanted = config.positive("mamba_n_heads", int, 128), config.values.get("mamba_d_head", "auto")
    head_dim = inner // heads if wanted == "auto" else config.positive("mamba_d_head", int)
    if heads * head_dim != inner:
        raise ModelError(
            f"config.json: mamba_n_heads {heads} x mamba_d_head {head_dim} must equal the inner width {inner}"
        )
    groups, state = config.get("mamba_n_groups", int, 1), config.get("mamba_d_state", int, 256)
    return dual_shape(config, heads, head_dim, groups, state)


def bamba_mixer(config: Config) -> Mamba2:
    """Return a Mamba 2 mixer from Bamba's config fields."""
    bias = config.get("mamba_proj_bias", bool, default=False)
    return Mamba2(
        bamba_shape(config, config.positive("mamba_expand", int, 2) * config.get("hidden_size", int)),
        taps_of(config, "mamba_d_conv", 4),
        config.get("rms_norm_eps", float, 1e-6),
        config.activation("hidden_act", "silu"),
        bias,
        bias,
        config.get("mamba_conv_bias", bool, default=True),
        limits=limits_of(config),
    )


def mamba_mixer(config: Config, *, inner: int, state: int, rank: int, taps: int, norm: Norm | None) -> Mamba:
    """Return a mixer of Mamba's first version. Raises ModelError for sizes of 0."""
    if not min(inner, state, rank):
        raise ModelError(f"config.json: {inner} columns, {state} states and rank {rank} must all be positive")
    return Mamba(inner, state, rank, taps, config.activation("hidden_act", "silu"), norm=norm)
