"""PhiMoE: layer norms with biases, and two experts a token, routed by SparseMixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import with_experts
from plimsoll_runtime.models.families.common.variants import with_layers, with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.mixtral import DEFAULTS, NAMES, THETA
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import SparseMixer

ROPES = ("rope_parameters", "rope_scaling")


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of PhimoeForCausalLM."""
    ropes = {field: _rope(values.get(field)) for field in ROPES}
    config = Config({**DEFAULTS, **values, **ropes, "mlp_bias": False})
    config.refuse_unless(num_experts_per_tok=2)
    spec = with_sliding(config, gated_decoder("PhimoeForCausalLM", config, theta=THETA, names=NAMES))
    norm = replace(spec.layers[0].norm, kind="layer", biased=True)
    head = replace(spec.head, bias=config.get("lm_head_bias", bool, default=False))
    spec = replace(with_layers(spec, lambda layer: replace(layer, norm=norm)), final_norm=norm, head=head)
    routing = SparseMixer(config.get("router_jitter_noise", float, 0.01))
    return with_experts(config, spec, "num_local_experts", (16, 2), routing)


def _rope(values: Any) -> Any:
    """Return rope parameters with one attention_factor, from short_mscale and long_mscale.

    Raises UnsupportedFieldError if these differ.
    """
    if not isinstance(values, Mapping) or not {"short_mscale", "long_mscale"} & values.keys():
        return values
    short, long = values.get("short_mscale"), values.get("long_mscale")
    if short != long:
        raise UnsupportedFieldError(f"config.json: short_mscale = {short!r} and long_mscale = {long!r} must be equal")
    rest = {key: value for key, value in values.items() if key not in ("short_mscale", "long_mscale")}
    return {**rest, "attention_factor": short}
