"""GGUF architectures: the Transformers class of each, and the metadata keys that give its config.

Keys and conversions follow llama.cpp's convert_hf_to_gguf.py and its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf import recurrent
from plimsoll_runtime.weights.gguf.family_fields import (
    deepseek,
    falcon,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gpt_oss,
    mpt,
    olmo2,
    windowed,
)
from plimsoll_runtime.weights.gguf.fields import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN, Pairs

More = Callable[[Pairs, frozenset[str], Mapping[str, Any]], dict[str, Any]]
"""Computes config fields from the metadata, the tensor names, and the fields known so far."""


@dataclass(frozen=True, slots=True)
class Key:
    """A metadata key without its architecture prefix. It is required if `default` is None."""

    name: str
    kind: type
    default: Any = None


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How to translate an architecture's metadata to the config of a Transformers class (`architecture`).

    - `keys`: config fields and their metadata keys, in addition to those of all architectures (`config.py`).
    - `fixed`: config fields with the same value in all files.
    - `epsilon`: the config's name for the epsilon of norms. `layer_norms`: norms are layer norms, not RMS norms.
    - `paired`: rows of queries and keys were reordered, so that RoPE rotates neighbouring dimensions.
    - `shifted_norms`: norm weights in the file include an added 1.
    - `partial`: only `rope.dimension_count` dimensions of a head are rotated.
    - `gating`: how a router scores experts (see `fields.SOFTMAX`); 0 if there are none or `more` checks it.
    - `by_layer`: the number of key heads and the MLP width may be lists with one number for each layer.
    - `plain_heads`: all heads of all layers have one size, for keys and values. If False, `more` gives the sizes.
    - `more`: computes further config fields, which take precedence. It may replace `architecture` by one of `others`.
    """

    architecture: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    epsilon: str = "rms_norm_eps"
    layer_norms: bool = False
    paired: bool = False
    shifted_norms: bool = False
    partial: bool = False
    gating: int = 0
    by_layer: bool = False
    plain_heads: bool = True
    more: More | None = None
    others: tuple[str, ...] = ()


WINDOW = {"sliding_window": Key("attention.sliding_window", int)}
CAPS = {
    "final_logit_softcapping": Key("final_logit_softcapping", float, 0.0),
    "attn_logit_softcapping": Key("attn_logit_softcapping", float, 0.0),
}


def _experts(count: str, chosen: str, inner: str | None = None, **others: Key) -> dict[str, Key]:
    """Return the keys of experts; the arguments are the config's names for the count, the experts per token and the
    width.
    """
    found = {count: Key("expert_count", int), chosen: Key("expert_used_count", int), **others}
    return found if inner is None else {**found, inner: Key("expert_feed_forward_length", int)}


GRANITE = {
    "attention_multiplier": Key("attention.scale", float),
    "embedding_multiplier": Key("embedding_scale", float),
    "residual_multiplier": Key("residual_scale", float),
    "logits_scaling": Key("logit_scale", float),
}
GPT2 = {
    "n_inner": Key("feed_forward_length", int),
    "n_embd": Key("embedding_length", int),
    "n_positions": Key("context_length", int),
    "n_head": Key("attention.head_count", int),
    "n_layer": Key("block_count", int),
}
BLOOM = {
    "seq_length": Key("context_length", int),
    "n_head": Key("attention.head_count", int),
    "n_layer": Key("block_count", int),
}
MPT = {
    "d_model": Key("embedding_length", int),
    "max_seq_len": Key("context_length", int),
    "n_heads": Key("attention.head_count", int),
    "n_layers": Key("block_count", int),
}
QWEN_MOE = _experts(
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    shared_expert_intermediate_size=Key("expert_shared_feed_forward_length", int),
)
FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("LlamaForCausalLM", paired=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "gemma": GgufFamily("GemmaForCausalLM", shifted_norms=True),
    "gemma2": GgufFamily("Gemma2ForCausalLM", {**WINDOW, **CAPS}, shifted_norms=True, more=gemma2),
    "gemma3": GgufFamily("Gemma3ForCausalLM", shifted_norms=True, more=gemma3),
    "gemma3n": GgufFamily("Gemma3nForCausalLM", by_layer=True, more=gemma3n),
    "gemma4": GgufFamily("Gemma4ForCausalLM", by_layer=True, plain_heads=False, more=gemma4),
    "phi2": GgufFamily("PhiForCausalLM", epsilon="layer_norm_eps", layer_norms=True, partial=True),
    "phi3": GgufFamily("Phi3ForCausalLM", {"sliding_window": Key("attention.sliding_window", int, 0)}, partial=True),
    "starcoder2": GgufFamily(
        "Starcoder2ForCausalLM",
        fixed={"sliding_window": None},
        epsilon="norm_epsilon",
        layer_norms=True,
    ),
    "stablelm": GgufFamily(
        "StableLmForCausalLM",
        {"use_parallel_residual": Key("use_parallel_residual", bool, False)},
        epsilon="layer_norm_eps",
        layer_norms=True,
        partial=True,
    ),
    "command-r": GgufFamily(
        "CohereForCausalLM", {"logit_scale": Key("logit_scale", float)}, epsilon="layer_norm_eps", layer_norms=True
    ),
    "cohere2": GgufFamily(
        "Cohere2ForCausalLM",
        {**WINDOW, "logit_scale": Key("logit_scale", float)},
        epsilon="layer_norm_eps",
        layer_norms=True,
    ),
    "olmo": GgufFamily(
        "OlmoForCausalLM",
        {"clip_qkv": Key("attention.clamp_kqv", float, 0.0)},
        epsilon="norm_eps",
        layer_norms=True,
        paired=True,
    ),
    "olmo2": GgufFamily("Olmo2ForCausalLM", more=olmo2, others=("Olmo3ForCausalLM",)),
    "exaone4": GgufFamily("Exaone4ForCausalLM", more=windowed),
    "granite": GgufFamily(
        "GraniteForCausalLM",
        GRANITE,
        paired=True,
    ),
    "nemotron": GgufFamily(
        "NemotronForCausalLM", epsilon="norm_eps", layer_norms=True, shifted_norms=True, partial=True
    ),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", paired=True),
    "seed_oss": GgufFamily("SeedOssForCausalLM"),
    "hunyuan-dense": GgufFamily("HunYuanDenseV1ForCausalLM"),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM"),
    "glm4": GgufFamily("Glm4ForCausalLM", partial=True),
    "arcee": GgufFamily("ArceeForCausalLM", paired=True),
    "qwen2moe": GgufFamily(
        "Qwen2MoeForCausalLM",
        QWEN_MOE,
        {"norm_topk_prob": False},
        gating=SOFTMAX,
    ),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        _experts("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
        {"norm_topk_prob": True},
        gating=SOFTMAX,
    ),
    "olmoe": GgufFamily(
        "OlmoeForCausalLM", _experts("num_experts", "num_experts_per_tok"), {"norm_topk_prob": False}, gating=SOFTMAX
    ),
    "granitemoe": GgufFamily(
        "GraniteMoeSharedForCausalLM",
        {
            **GRANITE,
            **_experts("num_local_experts", "num_experts_per_tok"),
            "shared_intermediate_size": Key("expert_shared_feed_forward_length", int, 0),
        },
        paired=True,
        gating=SOFTMAX,
    ),
    "glm4moe": GgufFamily(
        "Glm4MoeForCausalLM",
        _experts(
            "n_routed_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            n_shared_experts=Key("expert_shared_count", int, 0),
            first_k_dense_replace=Key("leading_dense_block_count", int, 0),
            routed_scaling_factor=Key("expert_weights_scale", float, 1.0),
            norm_topk_prob=Key("expert_weights_norm", bool, False),
            num_nextn_predict_layers=Key("nextn_predict_layers", int, 0),
        ),
        partial=True,
        gating=SIGMOID,
    ),
    "ernie4_5-moe": GgufFamily(
        "Ernie4_5_MoeForCausalLM",
        _experts(
            "moe_num_experts",
            "moe_k",
            "moe_intermediate_size",
            moe_num_shared_experts=Key("expert_shared_count", int, 0),
            shared_intermediate_size=Key("expert_shared_feed_forward_length", int, 0),
            moe_layer_start_index=Key("leading_dense_block_count", int, 0),
            moe_layer_interval=Key("interleave_moe_layer_step", int, 1),
        ),
        gating=SOFTMAX,
    ),
    "minimax-m2": GgufFamily(
        "MiniMaxM2ForCausalLM",
        _experts(
            "num_local_experts",
            "num_experts_per_tok",
            "intermediate_size",
            rotary_dim=Key("rope.dimension_count", int),
        ),
        partial=True,
        gating=SIGMOID,
    ),
    "falcon": GgufFamily(
        "FalconForCausalLM",
        {"ffn_hidden_size": Key("feed_forward_length", int)},
        {"bias": False},
        epsilon="layer_norm_epsilon",
        layer_norms=True,
        more=falcon,
    ),
    "gpt2": GgufFamily(
        "GPT2LMHeadModel",
        GPT2,
        epsilon="layer_norm_epsilon",
        layer_norms=True,
    ),
    "starcoder": GgufFamily(
        "GPTBigCodeForCausalLM",
        GPT2,
        {"multi_query": True},
        epsilon="layer_norm_epsilon",
        layer_norms=True,
    ),
    "gptneox": GgufFamily(
        "GPTNeoXForCausalLM",
        {"use_parallel_residual": Key("use_parallel_residual", bool, True)},
        {"attention_bias": True},
        epsilon="layer_norm_eps",
        layer_norms=True,
        partial=True,
    ),
    "bloom": GgufFamily("BloomForCausalLM", BLOOM, epsilon="layer_norm_epsilon", layer_norms=True),
    "mpt": GgufFamily("MptForCausalLM", MPT, {"no_bias": True}, "layer_norm_epsilon", layer_norms=True, more=mpt),
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        {**WINDOW, **_experts("num_local_experts", "num_experts_per_tok", "intermediate_size")},
        gating=SOFTMAX_OF_CHOSEN,
        more=gpt_oss,
    ),
    "deepseek2": GgufFamily(
        "DeepseekV3ForCausalLM", plain_heads=False, more=deepseek, others=("DeepseekV2ForCausalLM",)
    ),
    "mamba": GgufFamily(
        "MambaForCausalLM",
        epsilon="layer_norm_epsilon",
        plain_heads=False,
        more=recurrent.mamba,
        others=("FalconMambaForCausalLM",),
    ),
    "mamba2": GgufFamily("Mamba2ForCausalLM", epsilon="layer_norm_epsilon", plain_heads=False, more=recurrent.mamba2),
    "jamba": GgufFamily("JambaForCausalLM", by_layer=True, more=recurrent.jamba),
    "falcon-h1": GgufFamily("FalconH1ForCausalLM", more=recurrent.falcon_h1),
    "lfm2": GgufFamily("Lfm2ForCausalLM", epsilon="norm_eps", by_layer=True, more=recurrent.lfm2),
    "lfm2moe": GgufFamily(
        "Lfm2MoeForCausalLM",
        {
            **_experts("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
            "num_dense_layers": Key("leading_dense_block_count", int, 0),
        },
        {"use_expert_bias": True, "norm_topk_prob": True},
        epsilon="norm_eps",
        gating=SIGMOID,
        by_layer=True,
        more=recurrent.lfm2,
    ),
    "granitehybrid": GgufFamily(
        "GraniteMoeHybridForCausalLM", GRANITE, paired=True, by_layer=True, more=recurrent.granite_hybrid
    ),
    "nemotron_h": GgufFamily(
        "NemotronHForCausalLM",
        epsilon="layer_norm_epsilon",
        layer_norms=True,
        paired=True,
        by_layer=True,
        more=recurrent.nemotron_h,
    ),
    "nemotron_h_moe": GgufFamily(
        "NemotronHForCausalLM",
        _experts(
            "n_routed_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            moe_shared_expert_intermediate_size=Key("expert_shared_feed_forward_length", int),
            n_shared_experts=Key("expert_shared_count", int, 1),
            n_group=Key("expert_group_count", int, 1),
            topk_group=Key("expert_group_used_count", int, 1),
            routed_scaling_factor=Key("expert_weights_scale", float, 1.0),
            norm_topk_prob=Key("expert_weights_norm", bool, False),
            moe_latent_size=Key("moe_latent_size", int, 0),
        ),
        epsilon="layer_norm_epsilon",
        layer_norms=True,
        paired=True,
        gating=SIGMOID,
        by_layer=True,
        more=recurrent.nemotron_h,
    ),
    "qwen3next": GgufFamily(
        "Qwen3NextForCausalLM",
        QWEN_MOE,
        {"norm_topk_prob": True},
        shifted_norms=True,
        partial=True,
        gating=SOFTMAX,
        more=recurrent.qwen3_next,
    ),
    "qwen35": GgufFamily("Qwen3_5ForCausalLM", shifted_norms=True, partial=True, more=recurrent.qwen3_next),
    "qwen35moe": GgufFamily(
        "Qwen3_5MoeForCausalLM",
        QWEN_MOE,
        shifted_norms=True,
        partial=True,
        gating=SOFTMAX,
        more=recurrent.qwen3_next,
    ),
}
MIXTURES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(
        "MixtralForCausalLM",
        _experts("num_local_experts", "num_experts_per_tok"),
        {"sliding_window": None},
        paired=True,
        gating=SOFTMAX,
    ),
}
"""Used instead of FAMILIES if a file's metadata count experts."""


def family_of(metadata: Mapping[str, Any]) -> GgufFamily:
    """Return the family of a file's metadata. Raises ModelError if the architecture is unknown."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        raise ModelError(f"GGUF architecture {arch!r} is not supported; supported are {', '.join(FAMILIES)}")
    return MIXTURES[arch] if arch in MIXTURES and metadata.get(f"{arch}.expert_count") else FAMILIES[arch]
