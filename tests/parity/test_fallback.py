"""Transformers code with our attention gives Transformers' log probabilities in any steps.

Families that also have a program of ours are forced to run without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.cases import VISIBLE, Case, Saved, saved_cases
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.tiny import VOCAB, make_model, prompts, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.transformers_code import probe
from plimsoll_runtime.models.transformers_code.outline import transformers_outline
from plimsoll_runtime.models.transformers_code.skeleton import Halves

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 40, 120))
"""Longer than each window (16) below."""


HEADS: Mapping[str, Any] = {"head_dim": 16}
WINDOW: Mapping[str, Any] = {"sliding_window": 16, "num_hidden_layers": 4}
GPT: Mapping[str, Any] = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}
LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
"""Keys have 24 dimensions and values 12."""
EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
}

CASES: Mapping[str, Case] = {
    "apertus": Case("ApertusConfig"),
    "biogpt": Case("BioGptConfig"),
    "bitnet": Case("BitNetConfig"),
    "cohere": Case("CohereConfig", {"logit_scale": 0.5}),
    "cwm": Case("CwmConfig", {**HEADS, **WINDOW}),
    "deepseek-v2": Case("DeepseekV2Config", {**LATENT, **EXPERTS, "first_k_dense_replace": 1}),
    "diffllama": Case("DiffLlamaConfig"),
    "gemma2": Case("Gemma2Config", {**HEADS, **WINDOW, "query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0}),
    "gemma3n": Case(
        "Gemma3nTextConfig",
        {
            **HEADS,
            **WINDOW,
            "intermediate_size": [80] * 4,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "laurel_rank": 8,
        },
    ),
    "glm4-moe": Case("Glm4MoeConfig", {**HEADS, **EXPERTS}),
    "gpt-neox": Case("GPTNeoXConfig", {"hidden_size": 64}),
    "gpt2": Case("GPT2Config", {**GPT, "scale_attn_by_inverse_layer_idx": True}),
    "granite": Case("GraniteConfig", {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.2}),
    "granite-moe": Case("GraniteMoeConfig", {**EXPERTS, "logits_scaling": 2.0}),
    "jais2": Case("Jais2Config", HEADS),
    "minicpm3": Case("MiniCPM3Config", LATENT),
    "mixtral": Case("MixtralConfig", {**EXPERTS, "sliding_window": 16}),
    "nanochat": Case("NanoChatConfig", {"final_logit_softcapping": 5.0}),
    "nemotron": Case("NemotronConfig", {"attention_bias": True, "mlp_bias": True}),
    "olmo2": Case("Olmo2Config"),
    "olmoe": Case("OlmoeConfig", EXPERTS),
    "opt": Case("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 24, "pad_token_id": 1}),
    "persimmon": Case("PersimmonConfig", {"hidden_size": 64}),
    "phi": Case("PhiConfig", {"partial_rotary_factor": 0.5}),
    "qwen3-moe": Case("Qwen3MoeConfig", {**HEADS, **EXPERTS}),
    "smollm3": Case("SmolLM3Config", {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]}),
    "stablelm": Case("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "starcoder2": Case("Starcoder2Config", {"sliding_window": 16}),
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CASES, PROMPTS)


def computed(folder: Path, **options: Any) -> list[Tensor]:
    return of_engine(str(folder), PROMPTS, model_impl="transformers", **options)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["together", "in-chunks"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, expected = saved(name)
    assert largest_difference(computed(folder, max_batch_tokens=tokens), expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", ["cwm", "deepseek-v2", "gemma3n", "opt"])
def test_alone(name: str, saved: Saved) -> None:
    folder, expected = saved(name)
    alone = [of_engine(str(folder), [prompt], model_impl="transformers")[0] for prompt in PROMPTS]
    assert largest_difference(alone, expected) < TOLERANCE


@pytest.mark.parametrize("name", ["gemma2", "minicpm3"])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_every_backend_of_a_cpu(name: str, backend: str, saved: Saved) -> None:
    folder, expected = saved(name)
    assert largest_difference(computed(folder, attention_backend=backend), expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_answers_with_prefix_hits(name: str, saved: Saved) -> None:
    """Compares each token of an output whose prompt is cached, and of concurrent ones."""
    folder, _ = saved(name)
    reference = loaded_by_transformers(folder)
    llm = LLM(
        str(folder), model_impl="transformers", dtype="float32", threads=1, kv_memory="4MiB", check_integrity_every=1
    )
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=VOCAB)
    asked = [PROMPTS[3], PROMPTS[3][:70] + PROMPTS[2], PROMPTS[1]]
    llm.generate(asked[0], params)
    for round_, result in ((r, result) for r in range(2) for result in llm.generate(asked, params)):
        [output] = result.outputs
        assert output.logprobs is not None
        whole = [*result.prompt_token_ids, *output.token_ids]
        [expected] = of_transformers(reference, [whole[:-1]])
        rows = torch.tensor([[dict(r.top)[i] for i in range(VOCAB)] for r in output.logprobs], dtype=torch.float64)
        assert largest_difference([rows], [expected[-6:]]) < TOLERANCE
        assert round_ == 0 or result.cached_tokens >= len(result.prompt_token_ids) - 17


def test_preempted_requests(saved: Saved) -> None:
    """The cache is too small for all requests; the tokens equal those of a large cache."""
    folder, _ = saved("cwm")
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    answers = []
    for memory in ("4MiB", "96KiB"):
        llm = LLM(
            str(folder), model_impl="transformers", dtype="float32", threads=1, block_size=8, kv_memory=memory,
            max_model_len=160, check_integrity_every=1,
        )  # fmt: skip
        answers.append([r.outputs[0].token_ids for r in llm.generate(PROMPTS, params)])
        assert (llm.stats.preemptions > 0) == (memory == "96KiB")
    assert answers[0] == answers[1]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", ["cohere", "gemma2", "granite", "nanochat"])
def test_a_head_without_its_scale_or_cap_would_show(name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = saved(name)
    head = loaded_by_transformers(folder).get_output_embeddings()
    assert largest_difference(computed(folder), expected) < TOLERANCE
    monkeypatch.setattr("plimsoll_runtime.models.transformers_code.probe._check_equal", lambda *args: None)
    monkeypatch.setattr(Halves, "logits", lambda self, hidden: head(hidden))
    assert largest_difference(computed(folder), expected) > VISIBLE


@pytest.mark.parametrize("name", ["gpt2", "stablelm"])
def test_positions_counted_anew_in_every_step_would_show(
    name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = saved(name)
    real = Halves.hidden
    monkeypatch.setattr("plimsoll_runtime.models.transformers_code.probe._check_equal", lambda *args: None)
    monkeypatch.setattr(Halves, "hidden", lambda self, ids, positions: real(self, ids, torch.arange(len(ids))))
    assert largest_difference(computed(folder, max_batch_tokens=24), expected) > VISIBLE


def test_a_window_that_gets_lost_is_noticed(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a class uses its own caches instead."""
    folder, expected = saved("starcoder2")
    config = json.loads((folder / "config.json").read_text())
    assert transformers_outline(config).own is None
    monkeypatch.setattr(probe, "window_of", lambda mask: None)
    assert transformers_outline(config).own is not None
    assert largest_difference(computed(folder), expected) < TOLERANCE


def test_transformers_code_is_taken_where_there_is_none_of_ours(saved: Saved) -> None:
    folder, expected = saved("apertus")
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) < TOLERANCE
    with pytest.raises(ModelError, match="ApertusForCausalLM is not supported; supported are"):
        of_engine(str(folder), PROMPTS, model_impl="native")


@pytest.mark.parametrize(("config", "values"), [
    ("StableLmConfig", {"qk_layernorm": True, "partial_rotary_factor": 0.5}),
    ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 24, "do_layer_norm_before": False, "pad_token_id": 1}),
])  # fmt: skip
def test_what_our_program_does_not_know_of_a_family_transformers_code_computes(
    config: str, values: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(make_model(config, values), tmp_path)
    expected = of_transformers(loaded_by_transformers(tmp_path), PROMPTS)
    assert largest_difference(of_engine(str(tmp_path), PROMPTS), expected) < TOLERANCE
    assert "is not supported" in caplog.text
    assert "runs on Transformers code" in caplog.text
    with pytest.raises(ModelError, match=f"{next(iter(values))}|do_layer_norm_before|word_embed_proj_dim"):
        of_engine(str(tmp_path), PROMPTS, model_impl="native")
