"""The architectures of GGUF files: which of Transformers' classes each is, and what its metadata say.

Keys and conversions are those of llama.cpp's convert_hf_to_gguf.py and of its graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of the metadata, `name` without its architecture. Without a `default` it has to be there."""

    name: str
    kind: type
    default: Any = None


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """`architecture` is Transformers' class.

    - `keys`: what of a config the metadata say, beside what all say (`config.py`); `fixed`: what they need not say.
    - `epsilon`: what the config calls that of the norms, and whether those are layer norms.
    - `paired`: rows of queries and keys were reordered, so that neighbours turn together.
    - `shifted_norms`: the 1 that is added to the norms' weights is in the file.
    - `partial`: only `rope.dimension_count` dimensions of a head turn.
    """

    architecture: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    epsilon: str = "rms_norm_eps"
    layer_norms: bool = False
    paired: bool = False
    shifted_norms: bool = False
    partial: bool = False


WINDOW = {"sliding_window": Key("attention.sliding_window", int)}
CAPS = {
    "final_logit_softcapping": Key("final_logit_softcapping", float, 0.0),
    "attn_logit_softcapping": Key("attn_logit_softcapping", float, 0.0),
}

FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("LlamaForCausalLM", paired=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "gemma": GgufFamily("GemmaForCausalLM", shifted_norms=True),
    "gemma2": GgufFamily("Gemma2ForCausalLM", {**WINDOW, **CAPS}, shifted_norms=True),
    "gemma3": GgufFamily("Gemma3ForCausalLM", shifted_norms=True),
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
    "olmo2": GgufFamily("Olmo2ForCausalLM"),
    "granite": GgufFamily(
        "GraniteForCausalLM",
        {
            "attention_multiplier": Key("attention.scale", float),
            "embedding_multiplier": Key("embedding_scale", float),
            "residual_multiplier": Key("residual_scale", float),
            "logits_scaling": Key("logit_scale", float),
        },
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
}
