"""Specs with one detail changed in all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec
from plimsoll_runtime.models.spec.decoder import DecoderSpec, attention_of
from plimsoll_runtime.models.spec.norm import Norm

MIXTURES = {
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "OlmoeForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "PhimoeForCausalLM",
    "Glm4MoeForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GraniteMoeSWAForCausalLM",
    "Gemma4ForCausalLM",
}
"""Architectures with experts."""
RECURRENT = {
    "BambaForCausalLM",
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM",
    "NemotronHForCausalLM",
    "RecurrentGemmaForCausalLM",
    "FalconMambaForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Mamba2ForCausalLM",
    "MambaForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
}
"""Architectures with recurrent layers."""


def ropes_of(spec: DecoderSpec) -> tuple[RopeSpec, ...]:
    """Return the rope of each layer that has one."""
    attends = (attention_of(layer.mixer) for layer in spec.layers)
    return tuple(mixer.rope for mixer in attends if mixer is not None and mixer.rope is not None)


def with_shapes(spec: DecoderSpec, change: Callable[[AttentionShape], AttentionShape]) -> DecoderSpec:
    """Return a spec with each layer's attention shape changed."""
    return with_mixers(spec, lambda mixer: replace(mixer, shape=change(mixer.shape)))


def with_ropes(spec: DecoderSpec, change: Callable[[RopeSpec], RopeSpec]) -> DecoderSpec:
    """Return a spec with each existing rope changed."""
    return with_mixers(spec, lambda m: m if m.rope is None else replace(m, rope=change(m.rope)))


def with_norms(spec: DecoderSpec, change: Callable[[Norm], Norm]) -> DecoderSpec:
    """Return a spec with all norms over hidden states changed."""
    assert spec.final_norm is not None
    layers = with_layers(spec, lambda layer: replace(layer, norm=change(layer.norm)))
    return replace(layers, final_norm=change(spec.final_norm))
