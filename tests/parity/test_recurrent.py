"""Log probabilities of models with recurrent layers equal those of Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.cases import Case, Saved, saved_cases
from model_support.configs import DELTA
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.specs import RECURRENT
from model_support.tiny import make_model, prompts, save_model
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

TOLERANCE = 2e-3
PROMPTS = prompts((1, 2, 3, 17, 64, 90, 200))
"""Longer than each window (16) and than the rows of one scan (64)."""


EXPERTS: Mapping[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
MIXED: Mapping[str, Any] = {"layer_types": ["conv", "full_attention", "conv"]}
DUAL: Mapping[str, Any] = {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 10}

CASES: Mapping[str, Case] = {
    "mamba": Case("MambaConfig", {"state_size": 8}),
    "mamba-biases-untied": Case(
        "MambaConfig",
        {"state_size": 5, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "tie_word_embeddings": False},
    ),
    "falcon-mamba": Case("FalconMambaConfig", {"state_size": 8, "time_step_rank": 5}),
    "mamba2": Case("Mamba2Config", DUAL),
    "mamba2-one-group": Case(
        "Mamba2Config",
        {**DUAL, "n_groups": 1, "use_bias": True, "tie_word_embeddings": True, "time_step_limit": (0.3, 1.2)},
    ),
    "lfm2": Case("Lfm2Config", MIXED),
    "lfm2-biases": Case(
        "Lfm2Config",
        {**MIXED, "conv_bias": True, "block_multiple_of": 8, "conv_L_cache": 5, "tie_word_embeddings": False},
    ),
    "lfm2-as-older-configs-say-it": Case(
        "Lfm2Config",
        {**MIXED, "block_auto_adjust_ff_dim": False},
        drop=("layer_types", "intermediate_size"),
        edit={"full_attn_idxs": [1], "block_ff_dim": 80},
    ),
    "lfm2-moe": Case(
        "Lfm2MoeConfig",
        {
            **MIXED,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen3-next": Case("Qwen3NextConfig", {**DELTA, **EXPERTS}),
    "qwen3-next-dense-layers": Case(
        "Qwen3NextConfig",
        {**DELTA, **EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": False, "attention_bias": True},
    ),
    "qwen3.5": Case("Qwen3_5TextConfig", DELTA),
    "qwen3.5-one-head-each": Case(
        "Qwen3_5TextConfig", {**DELTA, "linear_num_key_heads": 4, "tie_word_embeddings": True}
    ),
    "qwen3.5-moe": Case("Qwen3_5MoeTextConfig", {**DELTA, **EXPERTS}),
}

HYBRID: Mapping[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "num_hidden_layers": 4,
}
SCALED: Mapping[str, Any] = {
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 0.9,
    "ssm_out_multiplier": 1.2,
    "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
    "mlp_multipliers": [1.2, 0.7],
}
FALCON: Mapping[str, Any] = {**HYBRID, "mamba_d_ssm": 96, "num_hidden_layers": 3}
GRANITE: Mapping[str, Any] = {
    **HYBRID,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "shared_intermediate_size": 40,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}
JAMBA: Mapping[str, Any] = {
    "mamba_d_state": 8,
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 4,
}
NEMOTRON: Mapping[str, Any] = {
    "head_dim": 12,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 10,
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
}
NEMOTRON_MOE: Mapping[str, Any] = {
    **NEMOTRON,
    "layer_types": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
GRIFFIN: Mapping[str, Any] = {"attention_window_size": 16, "num_hidden_layers": 4}

CASES = {
    **CASES,
    "bamba": Case("BambaConfig", {**HYBRID, "attn_layer_indices": [1, 3]}),
    "bamba-biases": Case(
        "BambaConfig",
        {**HYBRID, "attn_layer_indices": [2], "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "granite-hybrid": Case("GraniteMoeHybridConfig", {**GRANITE, "num_local_experts": 6}),
    "granite-hybrid-dense": Case(
        "GraniteMoeHybridConfig", {**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope"}
    ),
    "falcon-h1": Case("FalconH1Config", {**FALCON, **SCALED}),
    "falcon-h1-normed": Case("FalconH1Config", {**FALCON, "mamba_rms_norm": True, "projectors_bias": True}),
    "falcon-h1-gated-first": Case(
        "FalconH1Config", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mlp_bias": True}
    ),
    "jamba": Case("JambaConfig", JAMBA),
    "jamba-dense": Case("JambaConfig", {**JAMBA, "num_experts": 1, "mamba_proj_bias": True}),
    "nemotron-h": Case("NemotronHConfig", NEMOTRON),
    "nemotron-h-biases-letters": Case(
        "NemotronHConfig",
        {**NEMOTRON, "use_bias": True, "mlp_bias": True},
        drop=("layer_types", "layers_block_type"),
        edit={"hybrid_override_pattern": "M-*M-"},
    ),
    "nemotron-h-moe": Case("NemotronHConfig", NEMOTRON_MOE),
    "nemotron-h-moe-groups-narrowed": Case(
        "NemotronHConfig",
        {
            **NEMOTRON_MOE,
            "n_group": 4,
            "topk_group": 2,
            "moe_latent_size": 20,
            "mlp_bias": True,
            "norm_topk_prob": False,
        },
        drop=("layer_types", "layers_block_type"),
        edit={"hybrid_override_pattern": "ME*-E"},
    ),
    "recurrent-gemma": Case("RecurrentGemmaConfig", GRIFFIN),
    "recurrent-gemma-wide": Case(
        "RecurrentGemmaConfig",
        {**GRIFFIN, "lru_width": 48, "block_types": ["recurrent", "attention"], "attention_bias": True},
    ),
}


SIXTEENS: Mapping[str, Any] = {"head_dim": 16}
THIRDS: Mapping[str, Any] = {"num_attention_heads": 3, "num_key_value_heads": 1}
WALKED: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in CASES if name.startswith(("mamba", "falcon-mamba", "qwen3"))},
    **{name: THIRDS for name in CASES if name.startswith(("lfm2", "bamba", "granite", "jamba"))},
    **{name: SIXTEENS for name in CASES if name.startswith(("falcon-h1", "nemotron-h", "recurrent-gemma"))},
}
"""Cases that the C++ kernels support, with heads of a supported size."""
CASES = {
    **CASES,
    **{
        f"{name}-walked": replace(
            CASES[name],
            values={**CASES[name].values, **heads},
            options={"attention_backend": "cpu", "block_size": 16},
        )
        for name, heads in WALKED.items()
    },
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    make = saved_cases(tmp_path_factory, CASES, PROMPTS)

    def found(name: str) -> tuple[Path, list[Tensor]]:
        if "attention_backend" in CASES[name].options and kernels(torch.float32) is None:
            pytest.skip("the CPU kernels were not built")
        return make(name)

    return found


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("-walked")])
def test_a_gpu_has_all_that_its_steps_compute_with(name: str, saved: Saved) -> None:
    """Its graphs must not use the host: checked with hollow tensors for a device that does not exist."""
    pytest.importorskip("triton")
    from kernel_support.fake_gpu import asked_of_the_host

    assert asked_of_the_host(saved(name)[0]) == []


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["whole", "chunked"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, expected = saved(name)
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=tokens, **CASES[name].options)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_what_gives_way_is_computed_anew(name: str, saved: Saved) -> None:
    """Sequences decode together with few blocks, so that some are preempted and computed again."""
    folder, _ = saved(name)
    facts = facts_of(folder)
    room = 128 if CASES[name].options else 96  # of larger blocks
    llm = with_room(room, folder, max_model_len=96, max_batch_tokens=40, **CASES[name].options)
    compare(llm, prompts((17, 3, 30, 2, 25, 60)), 24, folder)
    whole = any(shape.window is None for shape in facts.attention)
    assert bool(llm.stats.preemptions) == whole, "if no layer keeps all tokens, there are enough blocks"


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_what_is_found_again_goes_on_from_its_states(name: str, saved: Saved) -> None:
    """Prompts with a common beginning, in chunks, some repeated, with few blocks: some continue from snapshots."""
    folder, _ = saved(name)
    llm = with_room(472, folder, max_model_len=256, max_batch_tokens=90, **CASES[name].options)
    shared, *tails = prompts((130, 30, 20, 47))
    asked = [shared + tail for tail in tails]
    compare(llm, [*asked, asked[0]], 12, folder)
    assert llm.stats.snapshots is not None
    assert llm.stats.snapshots.resumed >= 2
    assert llm.stats.cache_hit_tokens >= 2 * 64


@pytest.mark.matrix(6)
@pytest.mark.parametrize("name", [f"{name}-walked" for name in WALKED])
def test_the_kernels_walk_them(name: str, saved: Saved) -> None:
    assert why_not_fused(program_of(describe(resolve(str(saved(name)[0])).config))) is None


def facts_of(folder: Path) -> Facts:
    return program_of(describe(resolve(str(folder)).config)).facts


def with_room(tokens: int, folder: Path, *, block_size: int = 8, **options: Any) -> LLM:
    """Return an engine of four sequences whose KV cache has space for `tokens` tokens and padding."""
    facts = facts_of(folder)
    return LLM(
        str(folder),
        dtype="float32",
        threads=1,
        kv_memory=str((tokens + block_size) * facts.token_bytes(4)) if facts.attention else None,
        max_sequences=4,
        block_size=block_size,
        check_integrity_every=1,
        **options,
    )


def compare(llm: LLM, asked: Sequence[list[int]], count: int, folder: Path) -> None:
    """Check that the tokens of each output are the likeliest ones to Transformers."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=1)
    answers = [result.outputs[0] for result in llm.generate(list(asked), params)]
    texts = [prompt + list(answer.token_ids) for prompt, answer in zip(asked, answers, strict=True)]
    for prompt, answer, expected in zip(
        asked, answers, of_transformers(loaded_by_transformers(folder), texts), strict=True
    ):
        assert answer.logprobs is not None
        rows = expected[len(prompt) - 1 : -1]
        theirs = rows[torch.arange(len(rows)), torch.tensor(answer.token_ids)]
        ours = torch.tensor([entry.logprob for entry in answer.logprobs], dtype=torch.float64)
        assert (theirs - ours).abs().max() < TOLERANCE
        assert (rows.max(1).values - theirs).max() < TOLERANCE, "the most likely token is chosen"


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2", "qwen3.5", "falcon-h1", "recurrent-gemma"])
def test_bfloat16_costs_no_more_than_it_costs_transformers(name: str, tmp_path: Path) -> None:
    model = make_model(CASES[name].config, CASES[name].values).bfloat16()
    save_model(model, tmp_path)
    exact = torch.cat(of_transformers(loaded_by_transformers(tmp_path), PROMPTS)).exp()
    theirs = torch.cat(of_transformers(model, PROMPTS)).exp()
    ours = torch.cat(of_engine(str(tmp_path), PROMPTS, dtype="bfloat16", max_batch_tokens=24)).exp()
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


@pytest.mark.long
def test_every_family_is_compared(saved: Saved) -> None:
    own = [name for name in CASES if not CASES[name].options]
    compared = {describe(resolve(str(saved(name)[0])).config).architecture for name in own}
    assert compared == RECURRENT
