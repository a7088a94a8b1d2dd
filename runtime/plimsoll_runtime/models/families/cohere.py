"""Cohere and Cohere 2: parallel attention and MLP after one norm, with RoPE of neighbouring dimensions.

Cohere 2 has windows on three layers of four, and no RoPE on the fourth.
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
from plimsoll_runtime.models.spec.norm import Norm

DEFAULTS = {"max_position_embeddings": 8192, "tie_word_embeddings": True, "logit_scale": 0.0625}
"""Defaults of missing fields."""
THETA = 500_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of CohereForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = side_by_side("CohereForCausalLM", config, theta=THETA)
    if not config.get("use_qk_norm", bool, default=False):
        return spec
    norm = HeadNorm(spec.layers[0].norm, own=True)
    return with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))


def side_by_side(architecture: str, config: Config, *, theta: float) -> DecoderSpec:
    """Return a decoder with the parallel layers, layer norms and scaled logits of Cohere and Cohere 2."""
    norm = Norm(config.get("layer_norm_eps", float, 1e-5), "layer")
    spec = gated_decoder(architecture, config, pairs=True, theta=theta)
    parallel = with_layers(spec, lambda layer: replace(layer, norm=norm, residual="parallel-one-norm"))
    head = replace(spec.head, scale=config.get("logit_scale", float))
    return replace(parallel, final_norm=norm, head=head)


DEFAULTS_V2 = {
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
"""Defaults of missing fields."""


def describe_v2(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Cohere2ForCausalLM."""
    config = Config({**DEFAULTS_V2, **values, "mlp_bias": False})
    spec = side_by_side("Cohere2ForCausalLM", config, theta=10_000.0)
    every = config.positive("sliding_window_pattern", int)
    windows = config.windows(
        ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(spec.num_layers)]
    )
    return with_mixers(with_windows(spec, windows), lambda m: m if m.shape.window else replace(m, rope=None))
