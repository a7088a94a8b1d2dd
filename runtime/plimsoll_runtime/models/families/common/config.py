"""Reads config.json: typed fields, rotary embeddings, and errors for unsupported values that would change results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any, TypeVar

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.spec.attention import RopeSpec

T = TypeVar("T", int, float, bool, str)

MAX_NUMBER = 2**63


def typed(values: Mapping[str, Any], field: str, kind: type[T], default: T | None, what: str = "") -> T:
    """Return the value of a field, which must be of type `kind`; for float an integer may be given.

    If the field is null or missing, returns the default, or raises ModelError if that is None. Raises ModelError for
    another type, and for a number below 0 or from 2**63 on. `what` precedes the field's name in messages.
    """
    value = values.get(field)
    if value is None:
        if default is None:
            raise ModelError(f"config.json: {what}{field} is missing")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ModelError(f"config.json: {what}{field} is {value!r}; it must be of type {kind.__name__}")
    if isinstance(value, int | float) and not 0 <= value < MAX_NUMBER:
        raise ModelError(f"config.json: {what}{field} is {value!r}; it must be from 0 to below 2**63")
    return value


def saved_class(config: Mapping[str, Any]) -> str:
    """Return the name of the class that the files were saved from, "" if unknown."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


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
    """Raise ModelError if a config has both rope_parameters and rope_scaling, and they differ."""
    if newer and older and newer != older:
        raise ModelError(
            f"config.json: rope_parameters = {dict(newer)!r} and rope_scaling = {dict(older)!r} contradict each other; "
            "keep one of them"
        )


def rope_spec(values: Mapping[str, Any], head_dim: int, theta: float, max_positions: int) -> RopeSpec:
    """Return the RopeSpec of a dictionary of rope parameters; `theta` is the default base.

    Raises ModelError naming an unknown type or parameter.
    """
    kind = values.get("rope_type") or values.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        raise UnsupportedFieldError(f"config.json: rope type {kind!r} is not supported (only {SUPPORTED_ROPES})")
    neutral = {"partial_rotary_factor"} if values.get("partial_rotary_factor") == 1.0 else set()
    given = {key for key, value in values.items() if value is not None}
    if unknown := given - _ROPE_NOTES - _ROPE_KEYS[kind] - neutral:
        raise ModelError(f"config.json: rope parameters {sorted(unknown)} are not supported for rope type {kind!r}")
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
            raise ModelError(f"config.json: rope parameter partial_rotary_factor is {share}; it must be at most 1")
        return replace(plain, kind="proportional", factor=_positive(values, "factor", 1.0), share=share)
    scaled = replace(plain, factor=_positive(values, "factor"))
    if kind == "linear":
        return replace(scaled, kind="linear")
    original = typed(values, "original_max_position_embeddings", int, max_positions, "rope parameter ")
    if not original:
        raise ModelError("config.json: rope parameter original_max_position_embeddings is 0; it must be positive")
    scaled = replace(scaled, original_max_positions=original)
    return _llama3(scaled, values) if kind == "llama3" else _yarn(scaled, values)


def _dynamic(plain: RopeSpec, values: Mapping[str, Any]) -> RopeSpec:
    """Return the rope with its base multiplied by alpha ** (d / (d - 2)) for d rotated dimensions.

    Scaling beyond max_position_embeddings is not needed: contexts are never longer.
    """
    alpha = _positive(values, "alpha", 1.0)
    dims = plain.head_dim
    return replace(plain, theta=plain.theta * alpha ** (dims / (dims - 2))) if dims > 2 else plain


def _longrope(plain: RopeSpec, values: Mapping[str, Any], max_positions: int) -> RopeSpec:
    """Read factors for short and for long contexts (Ding et al., 2024): see `RopeSpec`."""
    original = typed(values, "original_max_position_embeddings", int, max_positions, "rope parameter ")
    if original < 2:
        raise ModelError(
            f"config.json: rope parameter original_max_position_embeddings is {original}; it must be at least 2"
        )
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
        raise ModelError("config.json: rope parameter rope_theta is 1, which yarn does not support")
    return replace(
        scaled,
        kind="yarn",
        beta_fast=_positive(values, "beta_fast", 32.0),
        beta_slow=_positive(values, "beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(values, scaled.factor),
        truncate=typed(values, "truncate", bool, default=True, what="rope parameter "),
    )


def _yarn_attention_factor(values: Mapping[str, Any], factor: float) -> float:
    """Return attention_factor if given, else DeepSeek's ratio of both mscales, else YaRN's formula."""
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
        raise ModelError(
            f"the rope has {count} frequency factors ({field}); {head_dim} rotated dimensions need {head_dim // 2}"
        )
    return tuple(_positive({field: factor}, field) for factor in factors)


def _positive(values: Mapping[str, Any], field: str, default: float | None = None) -> float:
    value = typed(values, field, float, default, "rope parameter ")
    if value == 0:
        raise ModelError(f"config.json: rope parameter {field} is 0; it must be positive")
    return value


MAX_LAYERS = 4096
"""Most layers: no model has more. A larger number means a damaged config, whose specs would fill the memory."""
LAYER_TYPES = ("full_attention", "sliding_attention")
ACTIVATION_NAMES: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class Config:
    """A model's config.json. Each error is a ModelError that names the field."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, field: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a field, which must be of type `kind`, as `typed` does.

        If the field is null or missing, returns the default, or raises ModelError if that is None.
        """
        return typed(self.values, field, kind, default)

    def refuse_unless(self, **expected: Any) -> None:
        """Raise UnsupportedFieldError if a field has a value other than the expected one. Missing and null are
        accepted.
        """
        for field, wanted in expected.items():
            value = self.values.get(field)
            if value is not None and value != wanted:
                raise UnsupportedFieldError(f"config.json: {field} = {value!r} is not supported (only {wanted!r})")

    def heads(self) -> tuple[int, int, int]:
        """Return (number of query heads, number of key heads, dimensions of a head). Each key head has a value head."""
        heads = self.get("num_attention_heads", int)
        kv_heads = self.get("num_key_value_heads", int, heads)
        hidden = self.get("hidden_size", int)
        head_dim = self.get("head_dim", int, hidden // max(1, heads))
        if not heads or not kv_heads or heads % kv_heads:
            raise ModelError(
                f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )
        if not head_dim or head_dim % 2:
            raise ModelError(f"config.json: head_dim is {head_dim}; a rotary embedding needs an even number")
        return heads, kv_heads, head_dim

    def layers(self) -> int:
        """Return the number of decoder layers."""
        layers = self.get("num_hidden_layers", int)
        if not 1 <= layers <= MAX_LAYERS:
            raise ModelError(f"config.json: num_hidden_layers is {layers}; it must be from 1 to {MAX_LAYERS}")
        return layers

    def layer_types(self, default: list[str], known: tuple[str, ...] = LAYER_TYPES) -> list[str]:
        """Return the type of each layer. Raises ModelError if one is not `known`."""
        types = self.values.get("layer_types") or default
        if not isinstance(types, list):
            raise ModelError(f"config.json: layer_types is {types!r}; it must be a list")
        if unknown := [kind for kind in types if kind not in known]:
            raise UnsupportedFieldError(f"config.json: layer_types has the unsupported value {unknown[0]!r}")
        if len(types) != self.layers():
            raise ModelError(f"config.json: layer_types has {len(types)} layers, num_hidden_layers is {self.layers()}")
        return list(types)

    def windows(self, default: list[str]) -> list[int | None]:
        """Return the window of each layer in tokens; None if the layer is not sliding or the window is 0.

        `default`: the layer types if the config has none.
        """
        types = self.layer_types(default)
        if "sliding_attention" not in types:
            return [None] * len(types)
        window = self.get("sliding_window", int)
        return [window or None if kind == "sliding_attention" else None for kind in types]

    def positive(self, field: str, kind: type[T], default: T | None = None) -> T:
        """Return the number in a field, as `get` does. Raises ModelError also if it is 0."""
        value = self.get(field, kind, default)
        if not value:
            raise ModelError(f"config.json: {field} is 0; it must be positive")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        """Return a field that is an object; empty if null or missing."""
        value = self.values.get(field) or {}
        if not isinstance(value, Mapping):
            raise ModelError(f"config.json: {field} is {value!r}; it must be an object")
        return value

    def activation(self, field: str, default: str | None = None) -> Activation:
        """Return the activation that a field names. Raises UnsupportedFieldError if it is not in ACTIVATION_NAMES."""
        name = self.get(field, str, default)
        if name not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise UnsupportedFieldError(f"config.json: {field} = {name!r} is not supported (only {known})")
        return ACTIVATION_NAMES[name]

    def rope(
        self, head_dim: int, *, partial: float | None = None, pairs: bool = False, theta: float = 10_000.0
    ) -> RopeSpec:
        """Return the rotary embedding of all layers, from rope_parameters or, in older configs, rope_scaling.

        `partial`: the default of the rotated share of a head; None: the whole head, and no other share is accepted.
        """
        newer, older = self.mapping("rope_parameters"), self.mapping("rope_scaling")
        check_dictionaries(newer, older)
        values = dict(newer or older)
        if partial is None:
            self.refuse_unless(partial_rotary_factor=1.0)
        else:
            share = self.get("partial_rotary_factor", float, partial)
            head_dim = int(head_dim * typed(values, "partial_rotary_factor", float, share, "rope parameter "))
            values.pop("partial_rotary_factor", None)
            if (values.get("rope_type") or values.get("type")) == "proportional":
                raise UnsupportedFieldError(
                    "config.json: rope type 'proportional' is not supported for a part of a head"
                )
            if head_dim < 2 or head_dim % 2:
                raise ModelError(
                    f"config.json: {head_dim} dimensions of a head are rotated; the number must be even and at least 2"
                )
        if (original := self.values.get("original_max_position_embeddings")) is not None:
            values["original_max_position_embeddings"] = original
        limit = self.get("max_position_embeddings", int, 2048)
        return replace(rope_spec(values, head_dim, self.get("rope_theta", float, theta), limit), pairs=pairs)

    def rope_of_type(
        self, kind: str, head_dim: int, theta: float, *, base: str = "rope_theta", scaled: bool = True
    ) -> RopeSpec:
        """Return the rope of one type of layers, for which newer configs have a dictionary each.

        Older configs have a base (in the field `base`, else `theta`), and a `rope_scaling` for types that are `scaled`.
        """
        nested = self.mapping("rope_parameters")
        if unknown := set(nested) - set(LAYER_TYPES):
            raise ModelError(f"config.json: rope_parameters has {sorted(unknown)}, which are not layer types")
        values = {**Config(nested).mapping(kind), **(self.mapping("rope_scaling") if scaled else {})}
        limit = self.get("max_position_embeddings", int)
        return rope_spec(values, head_dim, self.get(base, float, theta), limit)
