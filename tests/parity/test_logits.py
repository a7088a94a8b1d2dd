"""Log probabilities equal Transformers' for each architecture and each config field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_support.cases import VISIBLE, Case, Saved, saved_cases, with_mistakes
from model_support.forward import largest_difference, of_engine
from model_support.specs import ropes_of, with_norms, with_ropes, with_shapes
from model_support.tiny import prompts

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.models.families.common.variants import with_windows
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.spec.decoder import DecoderSpec

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 40, 90, 300))
"""Longer than each window (16) and each rope range (a context of 32, scaled) below."""


def wider_window(spec: DecoderSpec) -> DecoderSpec:
    wider = with_shapes(spec, lambda s: s if s.window is None else replace(s, window=s.window + 1))
    assert wider != spec
    return wider


def windows_shifted(spec: DecoderSpec) -> DecoderSpec:
    windows = [shape.window for shape in spec.attention]
    assert len(set(windows)) > 1
    return with_windows(spec, [*windows[1:], windows[0]])


def plain_rope(spec: DecoderSpec) -> DecoderSpec:
    plain = with_ropes(spec, lambda rope: RopeSpec(rope.head_dim, rope.theta))
    assert plain != spec
    return plain


def one_rope(spec: DecoderSpec) -> DecoderSpec:
    ropes = ropes_of(spec)
    assert len(set(ropes)) > 1
    return with_ropes(spec, lambda rope: ropes[0])


def other_theta(spec: DecoderSpec) -> DecoderSpec:
    return with_ropes(spec, lambda rope: replace(rope, theta=rope.theta * 1.5))


def no_attention_factor(spec: DecoderSpec) -> DecoderSpec:
    assert ropes_of(spec)[0].attention_factor != 1.0
    return with_ropes(spec, lambda rope: replace(rope, attention_factor=1.0))


def no_softcap(spec: DecoderSpec) -> DecoderSpec:
    assert spec.head.softcap is not None
    return replace(spec, head=replace(spec.head, softcap=None))


def default_scale(spec: DecoderSpec) -> DecoderSpec:
    scaled = with_shapes(spec, lambda shape: replace(shape, scale=shape.head_dim**-0.5))
    assert scaled != spec
    return scaled


def other_eps(spec: DecoderSpec) -> DecoderSpec:
    return with_norms(spec, lambda norm: replace(norm, eps=1e-6))


def yarn(**values: Any) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
    return {"rope_parameters": rope | values}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA: Mapping[str, Any] = {
    "head_dim": 16,
    "sliding_window": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 16,
}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
}
QWEN_WINDOW: Mapping[str, Any] = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}

CASES: Mapping[str, Case] = {
    "llama": Case("LlamaConfig", {"rms_norm_eps": 1e-1}, other_eps),
    "llama-theta": Case("LlamaConfig", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}, other_theta),
    "llama-tied": Case("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-biases": Case("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": Case("LlamaConfig", {"num_key_value_heads": 1, "head_dim": 8}),
    "llama-all-kv-heads": Case("LlamaConfig", {"num_key_value_heads": 4, "head_dim": 32}),
    "llama-kv-heads-unsaid": Case("LlamaConfig", {"num_key_value_heads": 4}, drop=("num_key_value_heads", "head_dim")),
    "llama-shards": Case("LlamaConfig", save={"max_shard_size": "12KB"}),
    "llama-linear": Case(
        "LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}, plain_rope
    ),
    "llama-llama3": Case("LlamaConfig", {"head_dim": 16, "rope_parameters": LLAMA3}, plain_rope),
    "llama-llama3-as-older-configs-say-it": Case(
        "LlamaConfig",
        {"head_dim": 16, "rope_parameters": LLAMA3},
        plain_rope,
        drop=("rope_parameters",),
        edit={"rope_theta": 5e4, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}},
    ),
    "llama-linear-as-oldest-configs-say-it": Case(
        "LlamaConfig",
        {},
        plain_rope,
        drop=("rope_parameters",),
        edit={"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "llama-yarn": Case("LlamaConfig", {"head_dim": 32, **yarn()}, plain_rope),
    "llama-yarn-factor": Case("LlamaConfig", {"head_dim": 32, **yarn(attention_factor=1.5)}, no_attention_factor),
    "llama-yarn-mscale": Case("LlamaConfig", {"head_dim": 32, **yarn(mscale=1.5, mscale_all_dim=0.5)}, plain_rope),
    "llama-yarn-betas": Case(
        "LlamaConfig", {"head_dim": 32, **yarn(beta_fast=16, beta_slow=2, truncate=False)}, plain_rope
    ),
    "mistral": Case("MistralConfig", {"sliding_window": None}),
    "mistral-window": Case("MistralConfig", {"sliding_window": 16, "head_dim": 16}, wider_window),
    "mistral-window-unsaid": Case("MistralConfig", drop=("sliding_window",)),
    "mistral-yarn": Case("MistralConfig", {"sliding_window": None, "head_dim": 32, **yarn()}, plain_rope),
    "qwen2": Case("Qwen2Config", {"num_key_value_heads": 1}),
    "qwen2-tied": Case("Qwen2Config", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2-window": Case("Qwen2Config", {**QWEN_WINDOW}, wider_window),
    "qwen2-window-off": Case("Qwen2Config", {**QWEN_WINDOW, "use_sliding_window": False}),
    "qwen2-layer-types": Case(
        "Qwen2Config",
        {**QWEN_WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        windows_shifted,
    ),
    "qwen2-window-as-older-configs-say-it": Case(
        "Qwen2Config", {**QWEN_WINDOW}, windows_shifted, drop=("layer_types",)
    ),
    "qwen2-yarn": Case("Qwen2Config", {**yarn(rope_theta=1e6)}, plain_rope),
    "qwen3": Case("Qwen3Config", {"head_dim": 16}),
    "qwen3-biases-tied": Case("Qwen3Config", {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-window": Case("Qwen3Config", {"head_dim": 16, "num_key_value_heads": 4, **QWEN_WINDOW}, wider_window),
    "qwen3-yarn-shards": Case(
        "Qwen3Config", {"head_dim": 16, "num_key_value_heads": 1, **yarn()}, plain_rope, save={"max_shard_size": "20KB"}
    ),
    "gemma3": Case("Gemma3TextConfig", {**GEMMA}, wider_window),
    "gemma3-two-ropes": Case("Gemma3TextConfig", {**GEMMA, "rope_parameters": GEMMA_ROPES}, one_rope),
    "gemma3-scaled-rope": Case("Gemma3TextConfig", {**GEMMA, "rope_parameters": GEMMA_ROPES}, plain_rope),
    "gemma3-ropes-as-older-configs-say-it": Case(
        "Gemma3TextConfig",
        {**GEMMA},
        plain_rope,
        drop=("rope_parameters", "layer_types"),
        edit={
            "rope_theta": 1e4,
            "rope_local_base_freq": 1e2,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 2,
        },
    ),
    "gemma3-layers-unsaid": Case(
        "Gemma3TextConfig",
        {**GEMMA, "num_hidden_layers": 7, "layer_types": None},
        windows_shifted,
        drop=("layer_types", "sliding_window_pattern", "_sliding_window_pattern"),
    ),
    "gemma3-scale": Case("Gemma3TextConfig", {**GEMMA, "query_pre_attn_scalar": 48}, default_scale),
    "gemma3-untied-biases": Case(
        "Gemma3TextConfig", {**GEMMA, "tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 1}
    ),
    "gemma3-softcap": Case("Gemma3TextConfig", {**GEMMA, "final_logit_softcapping": 5.0}, no_softcap),
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CASES, PROMPTS)


@pytest.mark.matrix(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["whole", "chunked"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, expected = saved(name)
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=tokens)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.matrix(8)
@pytest.mark.parametrize("name", ["llama-llama3", "qwen3", "gemma3"])
@pytest.mark.parametrize("backend", ["cpu", "torch", "sdpa", "reference"])
def test_every_backend_of_a_cpu(name: str, backend: str, saved: Saved) -> None:
    if backend == "cpu" and kernels(torch.float32) is None:
        pytest.skip("this processor has no kernels for float32, or they were not built")
    folder, expected = saved(name)
    actual = of_engine(str(folder), PROMPTS, attention_backend=backend, max_batch_tokens=96)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_has_all_that_its_steps_compute_with(name: str, saved: Saved) -> None:
    """Its graphs must not use the host: checked with hollow tensors for a device that does not exist."""
    pytest.importorskip("triton")
    from kernel_support.fake_gpu import asked_of_the_host

    assert asked_of_the_host(saved(name)[0]) == []


@pytest.mark.matrix(5)
@pytest.mark.parametrize("name", with_mistakes(CASES))
def test_a_mistake_would_show(name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the comparison above: with one wrong detail of the spec the logits differ widely."""
    CASES[name].be_mistaken(monkeypatch)
    folder, expected = saved(name)
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) > VISIBLE


def test_shards_are_many(saved: Saved) -> None:
    folder, _ = saved("llama-shards")
    assert len(list(folder.glob("*.safetensors"))) > 10
