"""Families: missing fields have Transformers' defaults, and unsupported values are rejected by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support.specs import ropes_of

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.families.common.config import MAX_LAYERS
from plimsoll_runtime.models.families.common.gpt import alternating_slopes_of, slopes_of
from plimsoll_runtime.models.layers.rope import inverse_frequencies
from plimsoll_runtime.models.registry.registry import FAMILIES, MODEL_TYPES, describe
from plimsoll_runtime.models.spec.attention import RopeSpec

Values = Mapping[str, Any]

NEEDED: Values = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
}
YARN: Values = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3: Values = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
APART: Values = {"num_kv_shared_layers": 0}
OWN: Mapping[str, Values] = {
    "HeliumForCausalLM": {"hidden_size": 320, "num_attention_heads": 20},
    "GPTJForCausalLM": {"num_attention_heads": 8},
    "CodeGenForCausalLM": {"num_attention_heads": 8},
    "GPTNeoForCausalLM": {"num_hidden_layers": 24},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "Mamba2ForCausalLM": {"num_heads": 16},
    "Gemma3nForCausalLM": APART,
}
"""Fields of families whose defaults do not fit NEEDED."""


def needed(architecture: str) -> dict[str, Any]:
    """Return the required fields of a config, by the family's names."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[MODEL_TYPE_OF[architecture]]
    values = {**NEEDED, **OWN.get(architecture, {})}
    return {kind.attribute_map.get(name, name): value for name, value in values.items()}


MODEL_TYPE_OF = {architecture: kind for kind, architecture in MODEL_TYPES.items()}


def config(architecture: str = "LlamaForCausalLM", **values: Any) -> dict[str, Any]:
    return {**NEEDED, "head_dim": 16, "architectures": [architecture], **values}


@pytest.mark.matrix(31)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_unsaid_means_what_it_means_to_transformers(architecture: str) -> None:
    from transformers import CONFIG_MAPPING

    values = needed(architecture)
    theirs = CONFIG_MAPPING[MODEL_TYPE_OF[architecture]](**values).to_dict()
    unsaid = describe({**values, "architectures": [architecture]})
    assert unsaid.architecture == architecture
    assert unsaid == describe({**theirs, "architectures": [architecture]})


@pytest.mark.matrix(32)
@pytest.mark.parametrize(("model_type", "architecture"), MODEL_TYPES.items())
def test_a_config_without_architectures_goes_by_its_model_type(model_type: str, architecture: str) -> None:
    unsaid: list[Values] = [{}, {"architectures": None}, {"architectures": []}]
    for missing in unsaid:
        assert describe({**needed(architecture), "model_type": model_type, **missing}).architecture == architecture


def test_null_is_not_missing() -> None:
    spec = describe(config("MistralForCausalLM", sliding_window=None, num_key_value_heads=None))
    assert (spec.attention[0].window, spec.attention[0].kv_heads) == (None, 32)
    with pytest.raises(ModelError, match="sliding_window is missing"):
        describe(config("Gemma3ForCausalLM", sliding_window=None))


def test_a_window_that_is_switched_off() -> None:
    window = {"sliding_window": 8, "max_window_layers": 1}
    windows = [a.window for a in describe(config("Qwen2ForCausalLM", use_sliding_window=True, **window)).attention]
    assert windows == [None, 8]
    assert {a.window for a in describe(config("Qwen3ForCausalLM", **window)).attention} == {None}


@pytest.mark.parametrize(
    "same",
    [
        {"rope_parameters": {**YARN, "rope_theta": 5e5}},
        {"rope_scaling": YARN, "rope_theta": 5e5},
        {"rope_scaling": {**YARN, "type": "yarn", "rope_type": None}, "rope_theta": 500_000},
        {"rope_scaling": {**YARN, "rope_theta": 5e5}, "rope_theta": 1e4},
        {"rope_scaling": YARN, "rope_parameters": YARN, "rope_theta": 5e5},
        {
            "rope_parameters": {**YARN, "rope_theta": 5e5, "original_max_position_embeddings": 32},
            "original_max_position_embeddings": 64,
        },
        {
            "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 5e5, "partial_rotary_factor": 1.0},
            "max_position_embeddings": 64,
        },
    ],
    ids=["new", "old", "oldest", "theta-twice", "twice-the-same", "context-outside", "context-unsaid"],
)
def test_the_spellings_of_one_rope(same: Values) -> None:
    expected = RopeSpec(16, 5e5, "yarn", 4.0, 64, attention_factor=0.1 * math.log(4.0) + 1.0)
    assert ropes_of(describe(config(**same))) == (expected, expected)


REFUSED: Mapping[str, tuple[Values, str]] = {
    "architecture": ({"architectures": ["T5EncoderModel"]}, "architecture T5EncoderModel is not supported; supported"),
    "no-architecture": ({"architectures": None}, "architecture None is not supported"),
    "architectures-text": ({"architectures": "LlamaForCausalLM"}, "architecture None is not supported"),
    "quantised": (
        {"quantization_config": {"quant_method": "gptq"}},
        "quantization_config: gptq is not supported: it stores",
    ),
    "activation": ({"hidden_act": "tanh"}, "hidden_act = 'tanh' is not supported"),
    "partial-rotary": ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5 is not supported"),
    "partial-rope": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor.* not supported for rope type 'default'",
    ),
    "tensor-parallel": ({"pretraining_tp": 2}, "pretraining_tp = 2 is not supported"),
    "unknown-rope": ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "rope type 'spiral' is not supported"),
    "longrope": (
        {"rope_parameters": {"rope_type": "longrope"}},
        r"0 frequency factors \(short_factor\); 16 rotated dim",
    ),
    "rope-list": ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope type \['yarn'\] is not supported"),
    "rope-text": ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn'; it must be an object"),
    "rope-unknown": ({"rope_parameters": {**YARN, "twist": 2}}, r"rope parameters \['twist'\] are not supported"),
    "rope-twice": ({"rope_parameters": YARN, "rope_scaling": LLAMA3}, "contradict each other"),
    "factor-missing": ({"rope_parameters": {"rope_type": "linear"}}, "rope parameter factor is missing"),
    "factor-zero": ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope parameter factor is 0"),
    "factor-text": (
        {"rope_parameters": {"rope_type": "linear", "factor": "2"}},
        "factor is '2'; it must be of type float",
    ),
    "llama3-low": ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
    "llama3-equal": ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "is not below high_freq_factor"),
    "yarn-theta": ({"rope_parameters": {**YARN, "rope_theta": 1.0}}, "rope_theta is 1"),
    "yarn-context": ({"rope_parameters": {**YARN, "original_max_position_embeddings": 0}}, "embeddings is 0"),
    "theta": ({"rope_theta": float("nan")}, "rope_theta is nan"),
    "missing": ({"hidden_size": None}, "hidden_size is missing"),
    "text": ({"hidden_size": "32"}, "hidden_size is '32'; it must be of type int"),
    "bool": ({"intermediate_size": True}, "intermediate_size is True; it must be of type int"),
    "negative": ({"vocab_size": -1}, "vocab_size is -1; it must be from 0"),
    "infinite": ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
    "number-for-bool": ({"attention_bias": 1}, "attention_bias is 1; it must be of type bool"),
    "no-heads": ({"num_attention_heads": 0}, "num_attention_heads 0 is not a multiple"),
    "uneven-heads": ({"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
    "odd-head": ({"head_dim": 15}, "head_dim is 15"),
    "no-layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "too-many-layers": ({"num_hidden_layers": MAX_LAYERS + 1}, "num_hidden_layers is 4097"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_numbers_is_refused(name: str) -> None:
    values, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        describe(config(**values))


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("Qwen2ForCausalLM", {"use_mrope": True}, "use_mrope = True is not supported"),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "layer_types": ["sliding_attention"]},
            "layer_types has 1 layers",
        ),
        (
            "Qwen3ForCausalLM",
            {"use_sliding_window": True, "layer_types": [["x"], "y"]},
            r"layer_types has the unsupported value \['x'\]",
        ),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "layer_types": "full"}, "layer_types is 'full'"),
        (
            "Gemma3ForCausalLM",
            {"layer_types": ["linear_attention"] * 2},
            "has the unsupported value 'linear_attention'",
        ),
        ("Gemma3ForCausalLM", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu' is not supported"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping = 50\.0 is not supported"),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"rope_type": "linear"}},
            r"\['rope_type'\], which are not layer types",
        ),
        ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": 3}}, "full_attention is 3; it must be an object"),
        ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "spiral"}}, "rope type 'spiral' is not supported"),
        ("Gemma3nForCausalLM", {}, "num_kv_shared_layers is 15, but the .* layers before have no sliding_attention"),
        (
            "Gemma3nForCausalLM",
            {**APART, "intermediate_size": [1]},
            r"intermediate_size is \[1\]; it must have a value for each",
        ),
        (
            "Gemma3nForCausalLM",
            {**APART, "intermediate_size": [1, "2"]},
            "intermediate_size is '2'; it must be of type int",
        ),
        ("Gemma3nForCausalLM", {**APART, "activation_sparsity_pattern": [1, 0]}, r"has 1\.0; values must be below 1"),
        (
            "Gemma3nForCausalLM",
            {**APART, "altup_active_idx": 4},
            "altup_num_inputs is 4; it must be from 2 to 64, and altup_active_idx 4 below it",
        ),
        ("Gemma3nForCausalLM", {**APART, "altup_num_inputs": 2**40}, "altup_num_inputs is 1099511627776; it must"),
        ("Gemma3nForCausalLM", {**APART, "hidden_size": 0}, "hidden_size is 0"),
        ("Gemma4ForCausalLM", {"hidden_size": 0}, "hidden_size is 0"),
        ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all' is not"),
        ("Gemma4ForCausalLM", {"per_layer_config": {"7": {}}}, "per_layer_config has '7', which is not a layer number"),
        (
            "Gemma4ForCausalLM",
            {"per_layer_config": {"1": {"window": 3}}},
            "per_layer_config has the unsupported field 'window'",
        ),
        ("Gemma4ForCausalLM", {"per_layer_config": {"1": {"head_dim": 3}}}, "head_dim is 3; a rotary embedding needs"),
        ("Gemma4ForCausalLM", {"enable_moe_block": True}, "0 experts in 2 layers"),
        (
            "Gemma4ForCausalLM",
            {
                "num_hidden_layers": 3,
                "num_kv_shared_layers": 1,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "per_layer_config": {"2": {"head_dim": 32}},
            },
            "layer 2 shares the keys of layer 0, whose heads differ",
        ),
        (
            "Gemma4ForCausalLM",
            {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2.0}}},
            r"partial_rotary_factor is 2\.0; it must be at most 1",
        ),
        (
            "GlmForCausalLM",
            {"rope_parameters": {"rope_type": "proportional"}},
            "'proportional' is not supported for a part",
        ),
        ("NemotronHForCausalLM", {"layer_types": ["moe", "mlp"], "n_routed_experts": 0}, "0 experts in 2"),
        ("MixtralForCausalLM", {"num_local_experts": 0}, "0 experts in 2 layers"),
        ("MixtralForCausalLM", {"num_local_experts": 2**17}, "131072 experts in 2 layers; the total must be from 1 to"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "9 experts for each token"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 0}, "0 experts for each token"),
        ("Qwen2MoeForCausalLM", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (
            "Qwen2MoeForCausalLM",
            {"mlp_only_layers": [True]},
            r"mlp_only_layers is \[True\]; it must be a list",
        ),
        ("Qwen2MoeForCausalLM", {"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
        (
            "Qwen3MoeForCausalLM",
            {"num_experts": 8, "num_local_experts": 16},
            "num_local_experts contradict each",
        ),
        ("OlmoeForCausalLM", {"clip_qkv": 8.0}, r"clip_qkv = 8\.0 is not supported"),
        ("PhimoeForCausalLM", {"num_experts_per_tok": 3}, "num_experts_per_tok = 3 is not supported"),
        ("PhimoeForCausalLM", {"rope_scaling": {"type": "spiral"}}, "rope type 'spiral' is not supported"),
        ("PhimoeForCausalLM", {"rope_scaling": {"short_mscale": 1.0, "long_mscale": 1.2}}, "must be equal"),
        ("Glm4MoeForCausalLM", {"n_group": 3}, "n_group 3 must be positive and divide 128 experts"),
        ("Glm4MoeForCausalLM", {"n_group": 4, "topk_group": 5}, "topk_group 5 must be from 1 to n_group"),
        ("Glm4MoeForCausalLM", {"n_group": 32, "topk_group": 1}, "topk_group 1 x 4 experts a group must be at least 8"),
        (
            "HunYuanMoEV1ForCausalLM",
            {"moe_topk": [1]},
            r"moe_topk is \[1\]; it must have a number for each of 2 layers",
        ),
        ("HunYuanMoEV1ForCausalLM", {"use_cla": True}, "use_cla = True is not supported"),
        ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "post_layernorm = True is not supp"),
        ("BloomForCausalLM", {"n_head": 8192, "hidden_size": 16384}, "8192 heads exceed the limit of 4096 for ALiBi"),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, "alibi = False is not supported"),
        ("MptForCausalLM", {"attn_config": {"qk_ln": True}}, "qk_ln = True is not supported"),
        ("MptForCausalLM", {"no_bias": False}, "no_bias = False is not supported"),
        (
            "GptOssForCausalLM",
            {"quantization_config": {"quant_method": "nvfp4"}},
            "quantization_config: nvfp4 is not",
        ),
        ("GptOssForCausalLM", {"num_experts_per_tok": 200}, "200 experts for each token"),
        (
            "Llama4ForCausalLM",
            {"layer_types": ["sliding_attention"] * 2},
            "has the unsupported value 'sliding_attention'",
        ),
        ("Llama4ForCausalLM", {"moe_layers": 3}, "moe_layers is 3; it must be a list of layer numbers"),
        ("Llama4ForCausalLM", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step is 0"),
        ("Llama4ForCausalLM", {"no_rope_layers": [1]}, "must have a number for each of 2 layers"),
        ("Ministral3ForCausalLM", {"rope_parameters": {"rope_type": "spiral"}}, "rope type 'spiral' is not supported"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
        ("DeepseekV3ForCausalLM", {"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ("DeepseekV3ForCausalLM", {"n_group": 7}, "n_group 7 must be positive and divide 256 experts"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc", "num_experts_per_tok": 2}, "topk_method = 'noaux_tc' is"),
        ("DeepseekV2ForCausalLM", {}, "0 experts for each token"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must have dense or sparse for"),
        ("MiniCPM3ForCausalLM", {"qk_rope_head_dim": 0}, "qk_rope_head_dim is 0"),
        (
            "Mistral4ForCausalLM",
            {"rope_parameters": {"partial_rotary_factor": 0.7}},
            "partial_rotary_factor = 0.7 is not",
        ),
        (
            "CodeGenForCausalLM",
            {"n_head": 6, "n_embd": 768, "head_dim": 128},
            "n_head is 6; it must be a multiple of 4",
        ),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1.0]}, "layer_rope_theta is .*; it must have 2 numbers"),
        ("OpenAIGPTLMHeadModel", {"afn": "tanh"}, "activation_function = 'tanh' is not supported"),
        ("MiniMaxM2ForCausalLM", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
    ],
)
def test_what_a_family_refuses(architecture: str, values: Values, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        describe(config(architecture, **values))


def test_slopes_of_heads() -> None:
    """Checks the paper's slopes for 8 heads; for 6 heads BLOOM's and MPT's rules differ."""
    eight = tuple(2.0**-i for i in range(1, 9))
    assert slopes_of(8) == alternating_slopes_of(8, 8) == eight
    assert slopes_of(6) == (*(2.0 ** -(2 * i) for i in (1, 2, 3, 4)), 2.0**-1, 2.0**-3)
    assert alternating_slopes_of(6, 8) == tuple(2.0**-i for i in (2, 4, 6, 8, 1, 3))
    assert alternating_slopes_of(8, 16) == tuple(2.0 ** (-2 * i) for i in range(1, 9))


def test_gemma3_ropes_of_two_kinds() -> None:
    theta = {"rope_theta": 3e6, "rope_local_base_freq": 2e4}
    types = ["sliding_attention", "full_attention"]
    older = config("Gemma3ForCausalLM", layer_types=types, rope_scaling={"type": "linear", "factor": 8}, **theta)
    expected = (RopeSpec(16, 2e4), RopeSpec(16, 3e6, "linear", 8.0))
    assert ropes_of(describe(older)) == expected
    nested = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    newer = config("Gemma3ForCausalLM", layer_types=types, rope_parameters=nested, **theta)
    assert ropes_of(describe(newer)) == expected, "a theta outside its dictionary is used"


scalars = st.none() | st.booleans() | st.integers() | st.integers(0, 64) | st.floats() | st.text(max_size=6)
words = st.sampled_from(["yarn", "llama3", "linear", "default", "full_attention", "sliding_attention", "silu"])
KINDS = ["default", "linear", "llama3", "yarn", "frequency_factors", "dynamic"]
NUMBERS = ["factor", "rope_theta", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"]
YARNS = ["beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"]
rope_keys = st.sampled_from([*NUMBERS, *YARNS, "rope_type", "type", "full_attention", "sliding_attention"])
values = st.recursive(
    scalars | words,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(rope_keys | st.text(max_size=4), v, max_size=6),
    max_leaves=8,
)
numbers = st.integers(0, 100) | st.floats(0, 1e6) | st.sampled_from([1, 1.0, 5e-324, 1e300])
ropes = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(KINDS), **dict.fromkeys(NUMBERS, numbers)},
    optional={key: numbers | st.booleans() | st.none() for key in YARNS},
) | st.dictionaries(rope_keys, values, max_size=5)
fields = st.sampled_from(
    sorted(
        {*NEEDED, "architectures", "head_dim", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"}
        | {"tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act", "hidden_activation", "layer_types"}
        | {"rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"}
        | {"sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers"}
        | {"query_pre_attn_scalar", "final_logit_softcapping", "quantization_config", "pretraining_tp"}
        | {"n_embd", "n_head", "rotary_dim", "attention_types", "attention_layers", "window_size", "num_kv_heads"}
        | {"new_decoder_architecture", "multi_query", "no_rope_layers", "no_rope_layer_interval", "logits_scaling"}
        | {"attention_multiplier", "clip_qkv", "use_bias", "norm_epsilon", "activation_function", "logit_scale"}
        | {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_topk", "moe_k", "moe_num_experts"}
        | {"decoder_sparse_step", "mlp_only_layers", "n_group", "topk_group", "n_shared_experts", "n_routed_experts"}
        | {"attention_chunk_size", "moe_layers", "floor_scale", "attn_scale", "attn_temperature_tuning"}
        | {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "mlp_layer_types"}
        | {"layer_rope_theta", "afn"}
        | {"attn_config", "alibi", "n_layer", "n_heads", "seq_length", "max_seq_len"}
        | {"moe_intermediate_size", "moe_layer_interval", "moe_layer_end_index", "num_nextn_predict_layers"}
    )
)


@pytest.mark.long
@given(
    architecture=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(fields, values, max_size=4),
    rope=ropes,
)
@settings(max_examples=500, deadline=None)
def test_any_config(architecture: str, changes: dict[str, Any], rope: dict[str, Any]) -> None:
    """Either the config has a spec, whose ropes can be computed, or a ModelError is raised."""
    nested = architecture in ("Gemma3ForCausalLM", "Olmo3ForCausalLM")
    parameters = {"full_attention": rope} if nested else rope
    try:
        spec = describe({**config(architecture), "rope_parameters": parameters, **changes})
    except ModelError:
        return
    assert len(str(program_of(spec)).splitlines()) > spec.num_layers
    for kind in set(ropes_of(spec)):
        if kind.head_dim <= 256:
            assert inverse_frequencies(kind).shape == (kind.head_dim // 2,)
