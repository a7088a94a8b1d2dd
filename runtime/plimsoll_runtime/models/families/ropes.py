"""Rotary embeddings as configs say them: one dictionary of parameters, some of which have moved over the years."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any

from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.fields import typed
from plimsoll_runtime.models.spec.rope import RopeSpec

SUPPORTED_ROPES = "default, linear, dynamic, llama3, yarn, longrope, proportional"
_ROPE_NOTES = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "truncate"}
_ROPE_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset({"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"}),
    "dynamic": frozenset({"alpha"}),
    "longrope": frozenset({"short_factor", "long_factor", "attention_factor"}),
    "frequency_factors": frozenset({"frequency_factors"}),
    "proportional": frozenset({"partial_rotary_factor"}),
}


def check_dictionaries(newer: Mapping[str, Any], older: Mapping[str, Any]) -> None:
    """Raises ModelError if a config has rope_parameters and rope_scaling, and they differ."""
    if newer and older and newer != older:
        raise ModelError(
            f"config.json: rope_parameters = {dict(newer)!r} and rope_scaling = {dict(older)!r} say different things; "
            "keep one of them"
        )


def rope_spec(values: Mapping[str, Any], head_dim: int, theta: float, max_positions: int) -> RopeSpec:
    """A RopeSpec from one dictionary of rope parameters; `theta` is for one that does not say it.

    Unknown kinds and parameters are refused by name.
    """
    kind = values.get("rope_type") or values.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        raise UnsupportedFieldError(f"config.json: rope type {kind!r} is not supported (only {SUPPORTED_ROPES})")
    neutral = {"partial_rotary_factor"} if values.get("partial_rotary_factor") == 1.0 else set()
    given = {key for key, value in values.items() if value is not None}
    if unknown := given - _ROPE_NOTES - _ROPE_KEYS[kind] - neutral:
        raise ModelError(f"config.json: rope parameters {sorted(unknown)} are unknown for rope type {kind!r}")
    plain = RopeSpec(head_dim, _positive(values, "rope_theta", theta))
    if kind == "default":
        return plain
    if kind == "frequency_factors":
        return replace(
            plain, kind="frequency_factors", frequency_factors=_factors(values, "frequency_factors", head_dim)
        )
    if kind == "dynamic":
        return _dynamic(plain, values)
    if kind == "longrope":
        return _longrope(plain, values, max_positions)
    if kind == "proportional":
        share = typed(values, "partial_rotary_factor", float, 1.0, "rope parameter ")
        if share > 1:
            raise ModelError(f"config.json: rope parameter partial_rotary_factor is {share}, and a head is no larger")
        return replace(plain, kind="proportional", factor=_positive(values, "factor", 1.0), share=share)
    scaled = replace(plain, factor=_positive(values, "factor"))
    if kind == "linear":
        return replace(scaled, kind="linear")
    original = typed(values, "original_max_position_embeddings", int, max_positions, "rope parameter ")
    if not original:
        raise ModelError("config.json: rope parameter original_max_position_embeddings is 0")
    scaled = replace(scaled, original_max_positions=original)
    return _llama3(scaled, values) if kind == "llama3" else _yarn(scaled, values)


def _dynamic(plain: RopeSpec, values: Mapping[str, Any]) -> RopeSpec:
    """Stretched for contexts beyond max_position_embeddings, which nobody gets here; by `alpha` always."""
    alpha = _positive(values, "alpha", 1.0)
    dims = plain.head_dim
    return replace(plain, theta=plain.theta * alpha ** (dims / (dims - 2))) if dims > 2 else plain


def _longrope(plain: RopeSpec, values: Mapping[str, Any], max_positions: int) -> RopeSpec:
    """Factors for short contexts and for long ones (Ding et al., 2024): see `RopeSpec`."""
    original = typed(values, "original_max_position_embeddings", int, max_positions, "rope parameter ")
    if original < 2:
        raise ModelError(f"config.json: rope parameter original_max_position_embeddings is {original}")
    stretched = _positive(values, "factor", max_positions / original)
    unsaid = sqrt(1 + log(stretched) / log(original)) if stretched > 1 else 1.0
    return replace(
        plain,
        kind="longrope",
        original_max_positions=original,
        attention_factor=_positive(values, "attention_factor", unsaid),
        frequency_factors=_factors(values, "short_factor", plain.head_dim),
        long_factors=_factors(values, "long_factor", plain.head_dim),
    )


def _llama3(scaled: RopeSpec, values: Mapping[str, Any]) -> RopeSpec:
    low, high = _positive(values, "low_freq_factor"), _positive(values, "high_freq_factor")
    if low >= high:
        raise ModelError(f"config.json: rope parameter low_freq_factor {low} is not below high_freq_factor {high}")
    return replace(scaled, kind="llama3", low_freq_factor=low, high_freq_factor=high)


def _yarn(scaled: RopeSpec, values: Mapping[str, Any]) -> RopeSpec:
    if scaled.theta == 1.0:
        raise ModelError("config.json: rope parameter rope_theta is 1, so that every pair turns alike: not for yarn")
    return replace(
        scaled,
        kind="yarn",
        beta_fast=_positive(values, "beta_fast", 32.0),
        beta_slow=_positive(values, "beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(values, scaled.factor),
        truncate=typed(values, "truncate", bool, default=True, what="rope parameter "),
    )


def _yarn_attention_factor(values: Mapping[str, Any], factor: float) -> float:
    """As given; else of the two scales where both are, which DeepSeek introduced; else YaRN's own."""
    if values.get("attention_factor") is not None:
        return typed(values, "attention_factor", float, None, "rope parameter ")

    def scale(mscale: float) -> float:
        return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return scale(_positive(values, "mscale")) / scale(_positive(values, "mscale_all_dim"))
    return scale(1.0)


def _factors(values: Mapping[str, Any], field: str, head_dim: int) -> tuple[float, ...]:
    factors = values.get(field)
    if not isinstance(factors, list) or len(factors) != head_dim // 2:
        count = len(factors) if isinstance(factors, list) else 0
        raise ModelError(f"the rope has {count} frequency factors ({field}), but {head_dim} dimensions of a head turn")
    return tuple(_positive({field: factor}, field) for factor in factors)


def _positive(values: Mapping[str, Any], field: str, default: float | None = None) -> float:
    value = typed(values, field, float, default, "rope parameter ")
    if value == 0:
        raise ModelError(f"config.json: rope parameter {field} is 0")
    return value
