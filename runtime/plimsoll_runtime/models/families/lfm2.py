"""LFM2: gated short convolutions on most layers, attention on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import kinds, taps_of
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import Mixture, TopK
from plimsoll_runtime.models.spec.recurrent import ShortConvolution
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

THETA = 1_000_000.0
NAMES = Names(
    output="self_attn.out_proj",
    head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    recurrent="conv",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    norms=("operator_norm", "", "ffn_norm", ""),
    final_norm="model.embedding_norm",
    experts=ExpertNames(
        router="feed_forward.gate",
        correction="feed_forward.expert_bias",
        gate_up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
        down="feed_forward.experts.{}.w2",
    ),
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Lfm2ForCausalLM."""
    inner = values.get("block_ff_dim", values.get("intermediate_size", 12_288))
    return _decoder("Lfm2ForCausalLM", values, _adjusted(Config({**values, "intermediate_size": inner})))


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Lfm2MoeForCausalLM, whose first layers have MLPs and the others mixtures."""
    config = Config(values)
    spec = _decoder("Lfm2MoeForCausalLM", values, config.get("intermediate_size", int, 7168))
    experts, chosen = experts_of(config, "num_experts", "num_experts_per_tok", (32, 4))
    routing = TopK(
        "sigmoid",
        renormalised=config.get("norm_topk_prob", bool, default=True),
        corrected=config.get("use_expert_bias", bool, default=True),
        scale=config.get("routed_scaling_factor", float, 1.0),
    )
    mixture = Mixture(experts, chosen, config.positive("moe_intermediate_size", int, 1792), routing)
    dense = config.get("num_dense_layers", int, 2)
    layers = (replace(layer, mlp=mixture) if i >= dense else layer for i, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


def _adjusted(config: Config) -> int:
    """Return the MLP width. The config has the value before it is scaled and rounded."""
    inner = config.get("intermediate_size", int)
    if not config.get("block_auto_adjust_ff_dim", bool, default=True):
        return inner
    inner = int(config.get("block_ffn_dim_multiplier", float, 1.0) * int(2 * inner / 3))
    multiple = config.positive("block_multiple_of", int, 256)
    return multiple * -(-inner // multiple)


def _decoder(architecture: str, values: Mapping[str, Any], inner: int) -> DecoderSpec:
    said = {"rms_norm_eps": values.get("norm_eps", 1e-5), "mlp_bias": False, "attention_bias": False}
    tied = values.get("tie_embedding", values.get("tie_word_embeddings", True))
    limit = values.get("max_position_embeddings", 128_000)
    known = {"intermediate_size": inner, "tie_word_embeddings": tied, "max_position_embeddings": limit}
    config = Config({"num_key_value_heads": 8, **values, **said, **known, "hidden_act": "silu"})
    spec = gated_decoder(architecture, config, theta=THETA, names=NAMES)
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=HeadNorm(spec.layers[0].norm)))
    short = ShortConvolution(
        spec.hidden_size, taps_of(config, "conv_L_cache", 3), config.get("conv_bias", bool, default=False)
    )
    attending = range(spec.num_layers) if values.get("full_attn_idxs") is None else values["full_attn_idxs"]
    default = ["full_attention" if i in attending else "conv" for i in range(spec.num_layers)]
    types = kinds(config, "layer_types", default, ("full_attention", "conv"))
    layers = (
        replace(layer, mixer=short) if kind == "conv" else layer for kind, layer in zip(types, spec.layers, strict=True)
    )
    return replace(spec, layers=tuple(layers))
