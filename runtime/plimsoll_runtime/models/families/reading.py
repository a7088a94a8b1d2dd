"""Reading config.json: typed fields, and refusal of what would change the numbers unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, TypeVar

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.spec import RopeSpec

T = TypeVar("T", int, float, bool, str)

SUPPORTED_ROPES = "default, linear, llama3, yarn"
_ROPE_NOTES = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "truncate"}
_ROPE_KEYS = {
    "default": set(),
    "linear": set(),
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "yarn": {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"},
}


class Config:
    """One model's config.json. Every refusal is a ModelError that names the field."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, field: str, kind: type[T], default: T | None = None) -> T:
        """A field of a kind; null or missing is the default, and an error when there is none."""
        value = self.values.get(field)
        if value is None:
            if default is None:
                raise ModelError(f"config.json: {field} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"config.json: {field} is {value!r}, which is no {kind.__name__}")
        if kind in (int, float) and value < 0:
            raise ModelError(f"config.json: {field} is {value!r}, which is negative")
        return value

    def refuse_unless(self, **expected: Any) -> None:
        """Refuse a field that says anything but what is computed here; missing and null are fine."""
        for field, wanted in expected.items():
            value = self.values.get(field)
            allowed = wanted if isinstance(wanted, tuple) else (wanted,)
            if value is not None and value not in allowed:
                raise ModelError(f"config.json: {field} = {value!r} is not supported (only {wanted!r})")

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key and value heads, dimensions of a head."""
        heads = self.get("num_attention_heads", int)
        kv_heads = self.get("num_key_value_heads", int, heads)
        hidden = self.get("hidden_size", int)
        head_dim = self.get("head_dim", int, hidden // max(1, heads))
        if not heads or not kv_heads or heads % kv_heads:
            raise ModelError(f"config.json: {heads} heads cannot share {kv_heads} key and value heads evenly")
        return heads, kv_heads, head_dim

    def layer_types(self, default: list[str]) -> list[str]:
        """ "full_attention" or "sliding_attention" for each layer."""
        types = self.values.get("layer_types") or default
        if unknown := set(types) - {"full_attention", "sliding_attention"}:
            raise ModelError(f"config.json: layer_types has {sorted(unknown)}, which are not supported")
        if len(types) != self.get("num_hidden_layers", int):
            raise ModelError(f"config.json: layer_types names {len(types)} layers")
        return list(types)

    def rope(self, head_dim: int, *, layer_type: str | None = None, default_theta: float = 10_000.0) -> RopeSpec:
        """The rotary embedding, written as rope_parameters (for each layer type or for all) or rope_scaling."""
        values = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if layer_type is not None and layer_type in values:
            values = values[layer_type] or {}
        theta = values.get("rope_theta") or self.values.get("rope_theta") or default_theta
        self.refuse_unless(partial_rotary_factor=1.0)
        return rope_spec(values, head_dim, float(theta), self.get("max_position_embeddings", int, 2048))


def rope_spec(values: Mapping[str, Any], head_dim: int, theta: float, max_positions: int) -> RopeSpec:
    """A RopeSpec from one dictionary of rope parameters. Unknown kinds and parameters are refused by name."""
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind not in _ROPE_KEYS:
        raise ModelError(f"config.json: rope type {kind!r} is not supported (only {SUPPORTED_ROPES})")
    if unknown := {k for k, v in values.items() if v is not None} - _ROPE_NOTES - _ROPE_KEYS[kind]:
        raise ModelError(f"config.json: rope parameters {sorted(unknown)} are unknown for rope type {kind!r}")
    if kind == "default":
        return RopeSpec(head_dim, theta)
    factor = values.get("factor")
    if not isinstance(factor, int | float) or factor <= 0:
        raise ModelError(f"config.json: rope type {kind!r} needs a positive factor, not {factor!r}")
    if kind == "linear":
        return RopeSpec(head_dim, theta, "linear", float(factor))
    original = int(values.get("original_max_position_embeddings") or max_positions)
    if kind == "llama3":
        low, high = float(values["low_freq_factor"]), float(values["high_freq_factor"])
        return RopeSpec(head_dim, theta, "llama3", float(factor), original, low, high)
    return RopeSpec(
        head_dim,
        theta,
        "yarn",
        float(factor),
        original,
        beta_fast=float(values.get("beta_fast") or 32.0),
        beta_slow=float(values.get("beta_slow") or 1.0),
        attention_factor=_yarn_attention_factor(values, float(factor)),
        truncate=values.get("truncate") is not False,
    )


def _yarn_attention_factor(values: Mapping[str, Any], factor: float) -> float:
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])

    def scale(mscale: float) -> float:
        return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return scale(float(values["mscale"])) / scale(float(values["mscale_all_dim"]))
    return scale(1.0)
