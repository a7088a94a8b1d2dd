"""Latent attention from DeepSeek's config fields, in otherwise Llama-like decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import Growth, LatentAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import LLAMA, Names

NORM = Norm(1e-6)
"""Norm of the low-rank vectors, independent of the config's other norms."""


def latent_decoder(
    architecture: str,
    values: Mapping[str, Any],
    *,
    names: Names = LLAMA,
    norm: Norm = NORM,
    growth: Growth | None = None,
    pairs: bool | None = None,
) -> DecoderSpec:
    """Return a gated decoder with latent attention.

    `pairs`: whether the rope rotates neighbouring dimensions; None: the config's rope_interleave decides.
    """
    turned = Config(values).positive("qk_rope_head_dim", int)
    config = Config({**values, "head_dim": turned, "num_key_value_heads": None})
    if pairs is None:
        pairs = config.get("rope_interleave", bool, default=True)
    spec = gated_decoder(architecture, config, pairs=pairs, names=names)
    heads, _, _ = config.heads()
    plain = config.positive("qk_nope_head_dim", int)
    mixer = LatentAttention(
        heads,
        config.positive("kv_lora_rank", int),
        plain,
        config.positive("v_head_dim", int),
        config.rope(turned, pairs=pairs),
        (plain + turned) ** -0.5 * _mscale(config) ** 2,
        norm,
        config.get("q_lora_rank", int, 0) or None,
        bias=config.get("attention_bias", bool, default=False),
        growth=growth,
    )
    return with_layers(spec, lambda layer: replace(layer, mixer=mixer))


def _mscale(config: Config) -> float:
    """Return the factor whose square multiplies scores, for a scaled rope with mscale_all_dim; 1 for other ropes."""
    rope = Config(config.mapping("rope_parameters") or config.mapping("rope_scaling"))
    stretched = rope.get("mscale_all_dim", float, 0.0)
    if (rope.values.get("rope_type") or rope.values.get("type") or "default") == "default" or not stretched:
        return 1.0
    factor = rope.positive("factor", float)
    return 0.1 * stretched * log(factor) + 1.0 if factor > 1.0 else 1.0
