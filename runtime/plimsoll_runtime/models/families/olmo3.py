"""OLMo 3: OLMo 2 with windows on three layers of four, whose rope is never scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.changing import with_mixers, with_windows
from plimsoll_runtime.models.families.olmo2 import normed_after
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS_V3 = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False, "sliding_window": 4096}
"""What a field that is missing means."""
THETA_V3 = 500_000.0


def describe_v3(values: Mapping[str, Any]) -> DecoderSpec:
    """Olmo3ForCausalLM."""
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
