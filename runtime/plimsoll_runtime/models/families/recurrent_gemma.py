"""RecurrentGemma: Griffin's recurrence on two layers of three, attention with a window on the third."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import ENDLESS, taps_of, with_kinds
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.recurrent import Griffin
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
"""Defaults of missing fields."""
NAMES = Names(
    query_key_value=("temporal_block.q_proj", "temporal_block.k_proj", "temporal_block.v_proj"),
    output="temporal_block.o_proj",
    gate_up=("mlp_block.gate_proj", "mlp_block.up_proj"),
    down="mlp_block.down_proj",
    recurrent="temporal_block",
    norms=("temporal_pre_norm", "", "channel_pre_norm", ""),
    final_norm="model.final_norm",
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of RecurrentGemmaForCausalLM. The config's MLP width counts gate and up projection together."""
    config = Config({**DEFAULTS, **values})
    hidden = config.get("hidden_size", int)
    said = {
        "mlp_bias": True,
        "hidden_act": config.get("hidden_activation", str),
        "intermediate_size": config.get("intermediate_size", int, 3 * hidden) // 2,
        "max_position_embeddings": config.get("max_position_embeddings", int, ENDLESS),
    }
    spec = gated_decoder(
        "RecurrentGemmaForCausalLM", Config({**config.values, **said}), partial=0.5, norm_offset=1.0, names=NAMES
    )
    window = config.get("attention_window_size", int, 2048) or None
    spec = with_mixers(spec, lambda m: replace(m, shape=replace(m.shape, window=window), output_bias=True))
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, GatedMlp)
    heads, inner = spec.attention[0].heads, config.get("lru_width", int, hidden)
    if not inner or inner % heads:
        raise ModelError(f"config.json: lru_width is {inner}; it must be a multiple of the {heads} heads")
    mixer = Griffin(inner, heads, taps_of(config, "conv1d_width", 4), mlp.activation)
    return replace(
        with_kinds(spec, _kinds(config, spec.num_layers), mixer),
        embedding=Embedding(scale=_in_bfloat16(hidden**0.5)),
        head=replace(spec.head, softcap=config.get("logits_soft_cap", float, 30.0) or None),
    )


def _in_bfloat16(number: float) -> float:
    """Round a number to bfloat16, the training dtype: the upper half of a float32's bits."""
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return float(struct.unpack("<f", struct.pack("<I", upper))[0])


def _kinds(config: Config, layers: int) -> list[str]:
    """Return the kind of each layer by repeating `block_types`."""
    types = config.values.get("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(types, list) or set(types) - {"recurrent", "attention"}:
        raise ModelError(f"config.json: block_types is {types!r}; it must be a list of recurrent and attention")
    return ["linear_attention" if types[i % len(types)] == "recurrent" else "full_attention" for i in range(layers)]
