"""OLMo 2 and OLMo 3: norms after attention and MLP, and over all heads together.

OLMo 3 has windows on three layers of four.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"))
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Olmo2ForCausalLM."""
    return normed_after("Olmo2ForCausalLM", Config({**DEFAULTS, **values}))


def normed_after(architecture: str, config: Config, *, theta: float = 10_000.0) -> DecoderSpec:
    """Return a decoder with the norms of OLMo 2 and 3: after attention and MLP, and over all heads together."""
    spec = gated_decoder(architecture, config, theta=theta, names=NAMES)
    norm = HeadNorm(spec.layers[0].norm, together=True)
    normed = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    return with_layers(normed, lambda layer: replace(layer, before=False, after=True))


DEFAULTS_V3 = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False, "sliding_window": 4096}
"""Defaults of missing fields."""
THETA_V3 = 500_000.0


def describe_v3(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Olmo3ForCausalLM."""
    values = {**DEFAULTS_V3, **values}
    config = Config(values)
    plain = {k: v for k, v in values.items() if k not in ("rope_parameters", "rope_scaling")}
    spec = normed_after("Olmo3ForCausalLM", Config(plain), theta=THETA_V3)
    windows = config.windows(
        ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(spec.num_layers)]
    )
    dims = spec.attention[0].head_dim
    full = config.rope_of_type("full_attention", dims, THETA_V3)
    sliding = config.rope_of_type("sliding_attention", dims, THETA_V3, scaled=False)
    return with_mixers(
        with_windows(spec, windows), lambda m: replace(m, rope=full if m.shape.window is None else sliding)
    )
