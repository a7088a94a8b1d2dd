"""Lists with an entry for each layer, against the fields that say the same by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.mixer import attention_of

TYPES = "layer_types"
RULES: Mapping[str, tuple[str, ...]] = {
    TYPES: (
        "sliding_window_pattern",
        "max_window_layers",
        "full_attention_interval",
        "full_attn_idxs",
        "attn_layer_indices",
        "layers_block_type",
    ),
    "no_rope_layers": ("no_rope_layer_interval",),
    "moe_layers": ("interleave_moe_layer_step",),
}
"""The fields that say by a rule what a list says for each layer: the list counts, as in Transformers."""
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "sliding_window_pattern")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def check_windows(config: Mapping[str, Any], spec: DecoderSpec) -> None:
    """Raises ModelError for a layer that has a window by `layer_types` and none by the other fields, or the reverse."""
    types = config.get(TYPES)
    if not isinstance(types, list):
        return
    if len(types) != spec.num_layers:
        raise ModelError(
            f"config.json: {TYPES} has {len(types)} layers, and num_hidden_layers says {spec.num_layers}; correct the "
            "one that is wrong"
        )
    for index, (kind, layer) in enumerate(zip(types, spec.layers, strict=True)):
        attention = attention_of(layer.mixer)
        if attention is None or kind not in (_SLIDING, _FULL):
            continue
        window = attention.shape.window
        if (window is None) is (kind == _SLIDING):
            said = ", ".join(f"{field} = {config[field]!r}" for field in _WINDOWS if field in config)
            gives = "no window" if window is None else f"a window of {window}"
            raise ModelError(
                f"config.json: {TYPES} says {kind} of layer {index}, and {said or 'nothing else'} gives it {gives}; "
                "correct the one that is wrong"
            )


def list_warnings(config: Mapping[str, Any], spec: DecoderSpec) -> Iterator[str]:
    """Of each list whose layers differ from what a rule next to it says."""
    for listed, fields in RULES.items():
        rules = {field: config[field] for field in fields if config.get(field) is not None}
        if not config.get(listed) or not rules:
            continue
        try:
            by_rule = describe({key: value for key, value in config.items() if key != listed})
        except ModelError:
            continue  # the rule alone does not describe a model: it is no second statement
        if by_rule.layers != spec.layers:
            said = ", ".join(f"{field} = {value!r}" for field, value in rules.items())
            yield f"config.json: {listed} = {config[listed]!r} and {said} say different things: {listed} counts"
