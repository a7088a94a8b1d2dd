"""Reading config.json: typed fields, and refusal of what would change the numbers unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.fields import T, typed
from plimsoll_runtime.models.families.ropes import check_dictionaries, rope_spec
from plimsoll_runtime.models.spec.rope import RopeSpec

MAX_LAYERS = 4096
"""More than any model has: a config that says more is damaged, and would fill the memory with descriptions."""
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
    """One model's config.json. Every refusal is a ModelError that names the field."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, field: str, kind: type[T], default: T | None = None) -> T:
        """A field of a kind; null or missing is the default, and an error when there is none."""
        return typed(self.values, field, kind, default)

    def refuse_unless(self, **expected: Any) -> None:
        """Refuse a field that says anything but what is computed here; missing and null are fine."""
        for field, wanted in expected.items():
            value = self.values.get(field)
            if value is not None and value != wanted:
                raise UnsupportedFieldError(f"config.json: {field} = {value!r} is not supported (only {wanted!r})")

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key and value heads, dimensions of a head."""
        heads = self.get("num_attention_heads", int)
        kv_heads = self.get("num_key_value_heads", int, heads)
        hidden = self.get("hidden_size", int)
        head_dim = self.get("head_dim", int, hidden // max(1, heads))
        if not heads or not kv_heads or heads % kv_heads:
            raise ModelError(f"config.json: {heads} heads cannot share {kv_heads} key and value heads evenly")
        if not head_dim or head_dim % 2:
            raise ModelError(f"config.json: head_dim is {head_dim}; a rotary embedding needs pairs of dimensions")
        return heads, kv_heads, head_dim

    def layers(self) -> int:
        """How many decoder layers there are."""
        layers = self.get("num_hidden_layers", int)
        if not 1 <= layers <= MAX_LAYERS:
            raise ModelError(f"config.json: num_hidden_layers is {layers}, and not from 1 to {MAX_LAYERS}")
        return layers

    def layer_types(self, default: list[str], known: tuple[str, ...] = LAYER_TYPES) -> list[str]:
        """One of the `known` for each layer."""
        types = self.values.get("layer_types") or default
        if not isinstance(types, list):
            raise ModelError(f"config.json: layer_types is {types!r}, which is no list")
        if unknown := [kind for kind in types if kind not in known]:
            raise UnsupportedFieldError(f"config.json: layer_types has {unknown[0]!r}, which is not supported")
        if len(types) != self.layers():
            raise ModelError(f"config.json: layer_types names {len(types)} layers, num_hidden_layers {self.layers()}")
        return list(types)

    def windows(self, default: list[str]) -> list[int | None]:
        """A window for each layer that slides, by its type; `default`: the types where the config does not say them."""
        types = self.layer_types(default)
        if "sliding_attention" not in types:
            return [None] * len(types)
        window = self.get("sliding_window", int)
        return [window or None if kind == "sliding_attention" else None for kind in types]

    def positive(self, field: str, kind: type[T], default: T | None = None) -> T:
        """A number that is not 0."""
        value = self.get(field, kind, default)
        if not value:
            raise ModelError(f"config.json: {field} is 0")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        """A field that holds an object; null or missing is an empty one."""
        value = self.values.get(field) or {}
        if not isinstance(value, Mapping):
            raise ModelError(f"config.json: {field} is {value!r}, which is no object")
        return value

    def activation(self, field: str, default: str | None = None) -> Activation:
        """An activation by any of the names that Transformers has for it."""
        name = self.get(field, str, default)
        if name not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise UnsupportedFieldError(f"config.json: {field} = {name!r} is not supported (only {known})")
        return ACTIVATION_NAMES[name]

    def rope(
        self, head_dim: int, *, partial: float | None = None, pairs: bool = False, theta: float = 10_000.0
    ) -> RopeSpec:
        """The rotary embedding of all layers, written as rope_parameters or, by older configs, as rope_scaling.

        `partial`: the share of a head that turns where the config does not say it; None: all of it, and none less.
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
                    "config.json: rope type 'proportional' is not supported of a part of a head"
                )
            if head_dim < 2 or head_dim % 2:
                raise ModelError(f"config.json: {head_dim} dimensions of a head turn, which cannot be paired")
        if (original := self.values.get("original_max_position_embeddings")) is not None:
            values["original_max_position_embeddings"] = original
        limit = self.get("max_position_embeddings", int, 2048)
        return replace(rope_spec(values, head_dim, self.get("rope_theta", float, theta), limit), pairs=pairs)

    def rope_of_type(
        self, kind: str, head_dim: int, theta: float, *, base: str = "rope_theta", scaled: bool = True
    ) -> RopeSpec:
        """The rope of one type of layers, for which newer configs have a dictionary each.

        Older ones have a base (in the field `base`, else `theta`), and a `rope_scaling` for types that are `scaled`.
        """
        nested = self.mapping("rope_parameters")
        if unknown := set(nested) - set(LAYER_TYPES):
            raise ModelError(f"config.json: rope_parameters has {sorted(unknown)}, which are no types of layers")
        values = {**Config(nested).mapping(kind), **(self.mapping("rope_scaling") if scaled else {})}
        limit = self.get("max_position_embeddings", int)
        return rope_spec(values, head_dim, self.get(base, float, theta), limit)
