"""Log probabilities of every family and its variants equal those of Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.cases import VISIBLE, Case, Saved, saved_cases, with_mistakes
from model_support.configs import LATENT, MSCALED
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.specs import MIXTURES, RECURRENT, with_ropes
from model_support.tiny import VOCAB, prompts

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.registry.registry import FAMILIES, describe
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.weights.sources.resolve import resolve

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 40, 120))
"""Longer than each window (16) below."""


WINDOW: Mapping[str, Any] = {"sliding_window": 16, "num_hidden_layers": 4}
GPT: Mapping[str, Any] = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}
GROWING: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.6,
}
MPT: Mapping[str, Any] = {"d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 256}
HEADS: Mapping[str, Any] = {"head_dim": 16}

LONGROPE: Mapping[str, Any] = {
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 256,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
        "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 12.0],
    },
}


def other_keys(spec: DecoderSpec) -> DecoderSpec:
    """Return a spec whose last layer shares the keys of the wrong layer."""
    other = with_mixers(spec, lambda mixer: replace(mixer, shares=0) if mixer.shares == 2 else mixer)
    assert other != spec
    return other


def dense_gates(spec: DecoderSpec) -> DecoderSpec:
    return with_layers(
        spec,
        lambda layer: replace(layer, mlp=replace(layer.mlp, sparsity=0.0) if isinstance(layer.mlp, GatedMlp) else None),
    )


def first_stream(spec: DecoderSpec) -> DecoderSpec:
    assert spec.altup is not None
    return replace(spec, altup=replace(spec.altup, active=0))


def less_turned(spec: DecoderSpec) -> DecoderSpec:
    less = with_ropes(spec, lambda rope: replace(rope, share=0.3 * rope.share))
    assert less != spec
    return less


SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA3N: Mapping[str, Any] = {
    **HEADS,
    "sliding_window": 16,
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "intermediate_size": [80, 72, 80, 64, 80, 80],
    "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.7, 0.3, 0.0],
    "num_kv_shared_layers": 3,
    "vocab_size_per_layer_input": VOCAB - 5,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
}
GEMMA4: Mapping[str, Any] = {
    **HEADS,
    "global_head_dim": 32,
    "sliding_window": 16,
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}
ALIKE: Mapping[str, Any] = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}

CASES: Mapping[str, Case] = {
    "gemma3n": Case("Gemma3nTextConfig", GEMMA3N, dense_gates),
    "gemma3n-three-streams": Case(
        "Gemma3nTextConfig",
        {
            **GEMMA3N,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": VOCAB + 5,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 5.0,
        },
        first_stream,
    ),
    "gemma3n-ropes-as-older-configs-say-it": Case(
        "Gemma3nTextConfig",
        {**GEMMA3N, "num_kv_shared_layers": 1},
        drop=("rope_parameters",),
        edit={"rope_theta": 1e3, "rope_local_base_freq": 1e2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "gemma4": Case("Gemma4TextConfig", {**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}, less_turned),
    "gemma4-no-inputs-biases": Case(
        "Gemma4TextConfig",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_bias": True, "final_logit_softcapping": 5.0},
    ),
    "gemma4-values-of-keys": Case("Gemma4TextConfig", {**ALIKE, "num_kv_shared_layers": 2}, other_keys),
    "gemma4-as-a-hub-has-it": Case(
        "Gemma4TextConfig",
        ALIKE,
        drop=("per_layer_config",),
        edit={"global_head_dim": 32, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"},
    ),
    "gemma4-ropes": Case(
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "tie_word_embeddings": False,
            "rope_parameters": {
                SLIDING: {"rope_type": "linear", "rope_theta": 1e2, "factor": 2.0},
                FULL: {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.6, "factor": 3.0},
            },
        },
    ),
    "gemma4-unified": Case("Gemma4UnifiedTextConfig", ALIKE),
    "gemma": Case("GemmaConfig", HEADS),
    "gemma2": Case("Gemma2Config", {**HEADS, **WINDOW, "query_pre_attn_scalar": 24}),
    "gemma2-no-caps": Case(
        "Gemma2Config", {**HEADS, **WINDOW, "final_logit_softcapping": None, "attn_logit_softcapping": None}
    ),
    "ministral": Case(
        "MinistralConfig", {**HEADS, **WINDOW, "layer_types": ["full_attention", "sliding_attention"] * 2}
    ),
    "ministral3": Case("Ministral3Config", {**HEADS, "rope_parameters": GROWING}),
    "ministral3-window-plain-rope": Case(
        "Ministral3Config",
        {
            **HEADS,
            "sliding_window": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 20,
                "llama_4_scaling_beta": 0.7,
            },
        },
    ),
    "phi": Case("PhiConfig", {"partial_rotary_factor": 0.5}),
    "phi3": Case("Phi3Config"),
    "phi3-window-partial": Case("Phi3Config", {"sliding_window": 16, "head_dim": 16, "partial_rotary_factor": 0.75}),
    "phi3-short": Case("Phi3Config", LONGROPE, options={"max_model_len": 130}),
    "phi3-long": Case(
        "Phi3Config",
        {**LONGROPE, "original_max_position_embeddings": 32},
        edit={"max_position_embeddings": 512},
        shortest=33,
    ),
    "youtu": Case("YoutuConfig", LATENT),
    "minicpm3": Case("MiniCPM3Config", {**LATENT, "scale_emb": 3.0, "dim_model_base": 24, "rope_parameters": MSCALED}),
    "minicpm3-no-scales": Case(
        "MiniCPM3Config", {**LATENT, "q_lora_rank": None, "scale_emb": 1, "scale_depth": None, "dim_model_base": None}
    ),
    "gpt2": Case("GPT2Config", GPT),
    "gpt2-inner-untied": Case("GPT2Config", {**GPT, "n_inner": 64, "tie_word_embeddings": False}),
    "gpt-neo": Case(
        "GPTNeoConfig",
        {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 16},
    ),
    "gpt-neox": Case("GPTNeoXConfig", {"hidden_size": 64}),
    "gpt-neox-sequential": Case(
        "GPTNeoXConfig", {"hidden_size": 64, "use_parallel_residual": False, "attention_bias": False}
    ),
    "gpt-neox-as-older-configs-say-it": Case(
        "GPTNeoXConfig",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}},
        drop=("rope_parameters",),
        edit={"rotary_pct": 0.5, "rotary_emb_base": 1000},
    ),
    "gptj": Case("GPTJConfig", {**GPT, "rotary_dim": 8}),
    "gpt-bigcode": Case("GPTBigCodeConfig", GPT),
    "gpt-bigcode-many-keys": Case("GPTBigCodeConfig", {**GPT, "multi_query": False}),
    "starcoder2": Case("Starcoder2Config", {"sliding_window": 16}),
    "starcoder2-no-bias": Case("Starcoder2Config", {"use_bias": False, "tie_word_embeddings": False}),
    "falcon": Case("FalconConfig"),
    "falcon-groups": Case("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-groups-one-norm": Case(
        "FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}
    ),
    "falcon-sequential-biases": Case("FalconConfig", {"parallel_attn": False, "bias": True, "multi_query": False}),
    "falcon-alibi": Case("FalconConfig", {"alibi": True, "hidden_size": 96, "num_attention_heads": 6, "bias": True}),
    "falcon-alibi-sequential": Case(
        "FalconConfig", {"alibi": True, "parallel_attn": False, "bias": True, "multi_query": False}
    ),
    "bloom": Case("BloomConfig", {"n_layer": 3, "n_head": 4}),
    "bloom-six-heads-untied": Case("BloomConfig", {"n_layer": 3, "n_head": 6, "tie_word_embeddings": False}),
    "mpt": Case("MptConfig", MPT),
    "mpt-six-heads-clip": Case(
        "MptConfig", {**MPT, "n_heads": 6, "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.4}}
    ),
    "opt": Case("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 48, "pad_token_id": 1}),
    "opt-no-bias": Case("OPTConfig", {"word_embed_proj_dim": 48, "pad_token_id": 1, "enable_bias": False}),
    "stablelm": Case("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "stablelm-parallel": Case(
        "StableLmConfig", {"use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 1.0}
    ),
    "cohere": Case("CohereConfig", {"logit_scale": 0.5}),
    "cohere-head-norms": Case("CohereConfig", {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.5}),
    "cohere2": Case("Cohere2Config", {**WINDOW, "logit_scale": 0.5}),
    "olmo": Case("OlmoConfig", {"clip_qkv": 1.5}),
    "olmo2": Case("Olmo2Config"),
    "olmo3": Case("Olmo3Config", WINDOW),
    "olmo3-scaled": Case(
        "Olmo3Config",
        {
            **WINDOW,
            "head_dim": 16,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "granite": Case(
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "attention_bias": True,
        },
    ),
    "granite-swa": Case(
        "GraniteSWAConfig", {"num_hidden_layers": 5, "sliding_window": 16, "attention_multiplier": 0.3}
    ),
    "granite-swa-ropes": Case("GraniteSWAConfig", {**WINDOW, "layer_rope_theta": [1e3, 0, 1e4, 1e2]}),
    "codegen": Case("CodeGenConfig", {**GPT, "rotary_dim": 8, "n_ctx": 256}),
    "openai-gpt": Case("OpenAIGPTConfig", GPT),
    "openai-gpt-silu": Case("OpenAIGPTConfig", {**GPT, "afn": "silu"}),
    "glm": Case("GlmConfig", HEADS),
    "glm4": Case("Glm4Config", {**HEADS, "attention_bias": False}),
    "smollm3": Case("SmolLM3Config", {"num_hidden_layers": 5}),
    "smollm3-window": Case("SmolLM3Config", {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]}),
    "exaone4": Case("Exaone4Config", {"num_hidden_layers": 5, "sliding_window": 16}),
    "exaone4-no-window": Case("Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "nemotron": Case("NemotronConfig", {"attention_bias": True, "mlp_bias": True}),
    "ernie": Case("Ernie4_5Config", {**HEADS, "use_bias": True}),
    "seed-oss": Case("SeedOssConfig", {**HEADS, "attention_out_bias": True, "mlp_bias": True}),
    "hunyuan": Case("HunYuanDenseV1Config", HEADS),
    "hunyuan-alpha": Case(
        "HunYuanDenseV1Config",
        {**HEADS, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 1.0, "alpha": 50.0}},
    ),
    "granite-dynamic": Case(
        "GraniteConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 4.0}}
    ),
    "arcee": Case("ArceeConfig", {"mlp_bias": True}),
    "helium": Case("HeliumConfig", {"head_dim": 12}),
}
ELSEWHERE = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Mistral4ForCausalLM",
    *MIXTURES,
    *RECURRENT,
}
"""Compared in test_logits.py, test_text_parts.py, test_mixtures.py and test_recurrent.py."""


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CASES, PROMPTS)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["whole", "chunked"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, expected = saved(name)
    actual = of_engine(str(folder), CASES[name].compared(PROMPTS), max_batch_tokens=tokens, **CASES[name].options)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_has_all_that_its_steps_compute_with(name: str, saved: Saved) -> None:
    """Its graphs must not use the host: checked with hollow tensors for a device that does not exist."""
    pytest.importorskip("triton")
    from kernel_support.fake_gpu import asked_of_the_host

    assert asked_of_the_host(saved(name)[0]) == []


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", with_mistakes(CASES))
def test_a_mistake_would_show(name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the comparison above: with one wrong detail of the spec the logits differ widely."""
    CASES[name].be_mistaken(monkeypatch)
    folder, expected = saved(name)
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) > VISIBLE


WIDE: Mapping[str, Any] = {"n_embd": 64, "word_embed_proj_dim": 64, "head_dim": 16}
"""Heads of 16 dimensions for the CPU kernels. (A longrope's factors fit only the cases' 12.)"""


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("phi3-short", "phi3-long")])
def test_the_cpu_kernels_compute_what_transformers_computes(name: str, tmp_path: Path) -> None:
    if kernels(torch.float32) is None:
        pytest.skip("the CPU kernels were not built")
    case = CASES[name]
    wide = {key: value for key, value in WIDE.items() if key in case.values}
    replace(case, values={**case.values, **wide}).write(tmp_path, hidden_size=64)
    if reason := why_not_fused(program_of(describe(resolve(str(tmp_path)).config))):
        pytest.skip(f"the CPU kernels {reason}")
    expected = of_transformers(loaded_by_transformers(tmp_path), PROMPTS)
    actual = of_engine(str(tmp_path), PROMPTS, attention_backend="cpu", max_batch_tokens=24, **case.options)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.long
def test_every_family_is_compared(saved: Saved) -> None:
    compared = {describe(resolve(str(saved(name)[0])).config).architecture for name in CASES}
    assert compared | ELSEWHERE == set(FAMILIES)
