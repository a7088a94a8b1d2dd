"""Nemotron-H: each layer is one of Mamba 2, attention without positions, an MLP, or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import dual_shape, kinds, mamba2_mixer
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.deepseek import corrected
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import Bottleneck, FeedForward, Mixture, PlainMlp
from plimsoll_runtime.models.spec.recurrent import Mamba2
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

DEFAULTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21_504,
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "routed_scaling_factor": 1.0,
}
"""Defaults of missing fields."""
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in `hybrid_override_pattern`."""
NAMES = Names(
    query_key_value=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    experts=ExpertNames(
        router="mixer.gate",
        correction="mixer.gate.e_score_correction_bias",
        gate_up=("mixer.experts.{}.up_proj",),
        down="mixer.experts.{}.down_proj",
        shared_gate_up=("mixer.shared_experts.up_proj",),
        shared_down="mixer.shared_experts.down_proj",
        narrowed=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
    ),
    norms=("norm", "", "norm", ""),
    embedding="backbone.embeddings",
    layer="backbone.layers.{}",
    final_norm="backbone.norm_f",
    beyond=("mtp.", "model.mtp."),
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of NemotronHForCausalLM."""
    found = _kinds(values)
    eps = values.get("layer_norm_epsilon", values.get("rms_norm_eps", 1e-5))
    config = Config({**DEFAULTS, **values, "num_hidden_layers": len(found), "rms_norm_eps": eps, "hidden_act": "silu"})
    found = kinds(config, "", found, tuple(LETTERS.values()))
    spec = gated_decoder("NemotronHForCausalLM", Config({**config.values, "attention_bias": False}), names=NAMES)
    mixer = _mixer(config)
    bias, activation = config.get("mlp_bias", bool, default=False), config.activation("mlp_hidden_act")
    mlp = PlainMlp(config.get("intermediate_size", int), activation, bias)
    alone: dict[str, FeedForward] = {"mlp": mlp}
    if "moe" in found:
        alone["moe"] = _mixture(config, mlp)

    def changed(kind: str, layer: LayerSpec) -> LayerSpec:
        if kind in alone:
            return replace(layer, mixer=None, mlp=alone[kind])
        assert isinstance(layer.mixer, SelfAttention)
        attention = replace(layer.mixer, rope=None)
        return replace(layer, mixer=attention if kind == "full_attention" else mixer, mlp=None)

    return replace(spec, layers=tuple(map(changed, found, spec.layers)))


def _kinds(values: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer, from a list or from a pattern with a letter for each layer."""
    for field in ("layer_types", "layers_block_type"):
        if isinstance(found := values.get(field), list) and found:
            return [str(kind) for kind in found]
    pattern = values.get("hybrid_override_pattern")
    if pattern is None:
        return ["linear_attention", "moe", "full_attention", "mlp"]
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(LETTERS):
        raise ModelError(f"config.json: hybrid_override_pattern is {pattern!r}; it may contain only {''.join(LETTERS)}")
    return [LETTERS[letter] for letter in pattern]


def _mixture(config: Config, mlp: PlainMlp) -> Mixture:
    experts, chosen = experts_of(config, "n_routed_experts", "num_experts_per_tok", (8, 2))
    width = config.get("moe_latent_size", int, 0)
    return Mixture(
        experts,
        chosen,
        config.positive("moe_intermediate_size", int),
        in_groups(config, experts, chosen, corrected(config)),
        mlp.activation,
        replace(mlp, inner=config.positive("moe_shared_expert_intermediate_size", int)),
        plain=True,
        narrowed=Bottleneck(width, mlp.bias) if width else None,
    )


def _mixer(config: Config) -> Mamba2:
    groups = config.get("n_groups", int, config.get("mamba_n_groups", int, 8))
    shape = dual_shape(
        config,
        config.get("mamba_num_heads", int, 128),
        config.get("mamba_head_dim", int, 64),
        groups,
        config.get("ssm_state_size", int, 128),
    )
    return mamba2_mixer(config, shape, config.get("rms_norm_eps", float), config.activation("mamba_hidden_act", "silu"))
