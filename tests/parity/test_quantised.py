"""Log probabilities of quantised checkpoints equal Transformers' with dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.quantised import FORMS, pack_experts, quantise
from model_support.tiny import edit_config, make_model, prompts, save_model

TOLERANCE, MIXED = 1e-3, 2e-3
PROMPTS = prompts((1, 30, 70))
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
LATENT = {
    **WIDE,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
GPT_OSS = {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", FORMS)
def test_a_dense_model(name: str, tmp_path: Path) -> None:
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    save_model(make_model("Qwen3Config", WIDE), folder)
    unquantised = of_transformers(loaded_by_transformers(folder), PROMPTS)
    quantise(folder, FORMS[name], plain)
    expected = of_transformers(loaded_by_transformers(plain), PROMPTS)
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) < TOLERANCE
    assert largest_difference(unquantised, expected) > 10 * TOLERANCE, "it was quantised"


def test_blocks_of_latent_attention_and_experts(tmp_path: Path) -> None:
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    save_model(make_model("DeepseekV3Config", LATENT), folder)
    quantise(folder, FORMS["fp8-blocks"], plain)
    expected = of_transformers(loaded_by_transformers(plain), PROMPTS)
    for options in ({}, {"max_batch_tokens": 24}):
        assert largest_difference(of_engine(str(folder), PROMPTS, **options), expected) < MIXED


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    save_model(make_model("GptOssConfig", GPT_OSS), folder)
    pack_experts(folder, plain)
    expected = of_transformers(loaded_by_transformers(plain), PROMPTS)
    for options in ({}, {"max_batch_tokens": 24}):
        assert largest_difference(of_engine(str(folder), PROMPTS, **options), expected) < MIXED


def test_what_modelopt_says_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    save_model(make_model("LlamaConfig", WIDE), folder)
    quantise(folder, FORMS["modelopt"], plain)
    edit_config(folder, drop=("quantization_config",))
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    expected = of_transformers(loaded_by_transformers(plain), PROMPTS)
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) < TOLERANCE
