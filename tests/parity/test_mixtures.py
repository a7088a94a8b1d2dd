"""Log probabilities of mixtures of experts equal those of Transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_support.cases import VISIBLE, Case, Saved, Spec, saved_cases, with_mistakes
from model_support.configs import DEEPSEEK, MSCALED
from model_support.forward import backend_of, largest_difference, of_engine
from model_support.specs import MIXTURES, with_ropes, with_shapes
from model_support.tiny import prompts

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.registry import registry
from plimsoll_runtime.models.spec.attention import LatentAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import ClampedGate, Mixture, MixtureBeside
from plimsoll_runtime.weights.sources.resolve import resolve

TOLERANCE = 2e-3
PROMPTS = prompts((1, 17, 40, 90, 200))
"""Longer than each window (16) below."""


def mixtures(change: Callable[[Mixture], Mixture]) -> Spec:
    """Return a function that changes each mixture, of which there must be one."""

    def changed(spec: DecoderSpec) -> DecoderSpec:
        def of_layer(mlp: Any) -> Any:
            if isinstance(mlp, MixtureBeside):
                return replace(mlp, mixture=change(mlp.mixture))
            return change(mlp) if isinstance(mlp, Mixture) else mlp

        found = with_layers(spec, lambda layer: replace(layer, mlp=of_layer(layer.mlp)))
        assert found != spec
        return found

    return changed


def routing(**values: Any) -> Spec:
    """Return a function that changes the routing."""
    return mixtures(lambda mixture: replace(mixture, routing=replace(mixture.routing, **values)))


def wider_window(spec: DecoderSpec) -> DecoderSpec:
    wider = with_shapes(spec, lambda s: s if s.window is None else replace(s, window=s.window + 1))
    assert wider != spec
    return wider


def unscaled(spec: DecoderSpec) -> DecoderSpec:
    assert spec.layers[0].scale != 1.0
    return with_layers(spec, lambda layer: replace(layer, scale=1.0))


def no_attention_factor(spec: DecoderSpec) -> DecoderSpec:
    plain = with_ropes(spec, lambda rope: replace(rope, attention_factor=1.0))
    assert plain != spec
    return plain


def whole_heads(spec: DecoderSpec) -> DecoderSpec:
    whole = with_ropes(spec, lambda rope: replace(rope, head_dim=spec.attention[0].head_dim))
    assert whole != spec
    return whole


def wider_chunk(spec: DecoderSpec) -> DecoderSpec:
    return with_shapes(spec, lambda s: s if s.chunk is None else replace(s, chunk=s.chunk + 1))


def slower_growth(spec: DecoderSpec) -> DecoderSpec:
    return with_mixers(spec, lambda m: m if m.growth is None else replace(m, growth=replace(m.growth, every=60.0)))


not_weighed_before = mixtures(lambda mixture: replace(mixture, weighs_inputs=False))


def latents(change: Callable[[LatentAttention], LatentAttention]) -> Spec:
    def changed(spec: DecoderSpec) -> DecoderSpec:
        def of_layer(mixer: Any) -> Any:
            assert isinstance(mixer, LatentAttention)
            return change(mixer)

        found = with_layers(spec, lambda layer: replace(layer, mixer=of_layer(layer.mixer)))
        assert found != spec
        return found

    return changed


unscaled_scores = latents(lambda mixer: replace(mixer, scale=(mixer.plain + mixer.rope.head_dim) ** -0.5))
narrower = latents(lambda mixer: replace(mixer, norm=replace(mixer.norm, eps=0.3)))
no_attention_factor_of_latents = latents(lambda mixer: replace(mixer, rope=replace(mixer.rope, attention_factor=1.0)))


def no_clamp(spec: DecoderSpec) -> DecoderSpec:
    return mixtures(lambda mixture: replace(mixture, clamped=ClampedGate(1.702, 7.0)))(spec)


two_experts = mixtures(lambda mixture: replace(mixture, chosen=2))
fewer_experts = mixtures(lambda mixture: replace(mixture, chosen=mixture.chosen - 1))
not_renormalised = routing(renormalised=False)
renormalised = routing(renormalised=True)

SIXTEEN: Mapping[str, Any] = {"hidden_size": 64}
"""Heads of 16 dimensions for the kernels, if a config has no field for that."""
MIXTRAL: Mapping[str, Any] = {**SIXTEEN, "num_local_experts": 6}
PHIMOE: Mapping[str, Any] = MIXTRAL
QWEN2: Mapping[str, Any] = {
    **SIXTEEN,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
QWEN3: Mapping[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16}
OLMOE: Mapping[str, Any] = {**SIXTEEN, "num_experts": 8, "num_experts_per_tok": 3}
GRANITE: Mapping[str, Any] = {
    **SIXTEEN,
    "num_local_experts": 6,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}
GLM: Mapping[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16}
ERNIE: Mapping[str, Any] = {**SIXTEEN, "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24}
HUNYUAN: Mapping[str, Any] = {"num_experts": 8, "moe_topk": 3, "head_dim": 16}
MINIMAX: Mapping[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16}
GPT_OSS: Mapping[str, Any] = {
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "sliding_window": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}
LLAMA4: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "num_local_experts": 6,
    "head_dim": 16,
    "intermediate_size_mlp": 56,
    "attention_chunk_size": 24,
    "floor_scale": 8,
    "attn_scale": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA4: Mapping[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 24,
    "vocab_size_per_layer_input": 20,
    "hidden_size_per_layer_input": 8,
}
LONGROPE: Mapping[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 2.7, 3.0],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 14.0, 20.0],
    "short_mscale": 1.4,
    "long_mscale": 1.4,
    "original_max_position_embeddings": 256,
}
WINDOW: Mapping[str, Any] = {"use_sliding_window": True, "sliding_window": 16}

CASES: Mapping[str, Case] = {
    "mixtral": Case("MixtralConfig", MIXTRAL, not_renormalised),
    "mixtral-window": Case("MixtralConfig", {**MIXTRAL, "sliding_window": 16, "head_dim": 16}, wider_window),
    "mixtral-tied-shards": Case(
        "MixtralConfig", {**MIXTRAL, "tie_word_embeddings": True}, fewer_experts, save={"max_shard_size": "12KB"}
    ),
    "qwen2-moe": Case("Qwen2MoeConfig", QWEN2, renormalised),
    "qwen2-moe-renormalised": Case("Qwen2MoeConfig", {**QWEN2, "norm_topk_prob": True}, not_renormalised),
    "qwen2-moe-dense-layers": Case(
        "Qwen2MoeConfig",
        {**QWEN2, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "qkv_bias": False},
        fewer_experts,
    ),
    "qwen2-moe-window": Case("Qwen2MoeConfig", {**QWEN2, **WINDOW, "max_window_layers": 2}, wider_window),
    "qwen2-moe-window-as-older-configs-say-it": Case(
        "Qwen2MoeConfig",
        {**QWEN2, **WINDOW, "max_window_layers": 1},
        wider_window,
        drop=("layer_types",),
    ),
    "qwen3-moe": Case("Qwen3MoeConfig", QWEN3, renormalised),
    "qwen3-moe-renormalised": Case("Qwen3MoeConfig", {**QWEN3, "norm_topk_prob": True}, not_renormalised),
    "qwen3-moe-window-dense-layers": Case(
        "Qwen3MoeConfig", {**QWEN3, **WINDOW, "mlp_only_layers": [1], "attention_bias": True}, wider_window
    ),
    "qwen3-moe-as-older-configs-say-it": Case(
        "Qwen3MoeConfig", QWEN3, fewer_experts, drop=("num_local_experts",), edit={"num_experts": 8}
    ),
    "olmoe": Case("OlmoeConfig", OLMOE, renormalised),
    "olmoe-renormalised-biases": Case(
        "OlmoeConfig",
        {**OLMOE, "norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": 1},
        fewer_experts,
    ),
    "granite-moe": Case("GraniteMoeConfig", {**GRANITE, "attention_bias": True}, not_renormalised),
    "granite-moe-swa": Case(
        "GraniteMoeSWAConfig",
        {**GRANITE, "num_hidden_layers": 5, "sliding_window": 16, "layer_rope_theta": [0, 1e3, 1e4, 0.0, 1e2]},
        wider_window,
    ),
    "granite-moe-shared": Case("GraniteMoeSharedConfig", {**GRANITE, "shared_intermediate_size": 24}, unscaled),
    "granite-moe-shared-with-none": Case("GraniteMoeSharedConfig", {**GRANITE, "tie_word_embeddings": True}),
    "phimoe": Case("PhimoeConfig", PHIMOE, routing(jitter=0.5)),
    "phimoe-jitter-biases-window": Case(
        "PhimoeConfig",
        {
            **PHIMOE,
            "router_jitter_noise": 0.3,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 16,
        },
        routing(jitter=0.01),
    ),
    "phimoe-longrope": Case(
        "PhimoeConfig",
        {**PHIMOE, "max_position_embeddings": 512, "rope_parameters": LONGROPE},
        no_attention_factor,
        options={"max_model_len": 208},
    ),
    "glm4-moe": Case("Glm4MoeConfig", {**GLM, "routed_scaling_factor": 2.5}, routing(scale=1.0)),
    "glm4-moe-groups": Case("Glm4MoeConfig", {**GLM, "n_group": 4, "topk_group": 2}, routing(groups=1, open_groups=1)),
    "glm4-moe-biases-qk-norm": Case(
        "Glm4MoeConfig",
        {
            **GLM,
            "attention_bias": True,
            "use_qk_norm": True,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
            "partial_rotary_factor": 0.25,
        },
        renormalised,
    ),
    "ernie-moe": Case("Ernie4_5_MoeConfig", ERNIE, not_renormalised),
    "ernie-moe-biases-least": Case(
        "Ernie4_5_MoeConfig",
        {**ERNIE, "use_bias": True, "moe_norm_min": 0.6, "moe_layer_start_index": 0, "moe_num_shared_experts": 1},
        routing(least=1e-12),
    ),
    "ernie-moe-dense-layers": Case(
        "Ernie4_5_MoeConfig",
        {
            **ERNIE,
            "num_hidden_layers": 6,
            "moe_layer_end_index": 4,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 0,
            "tie_word_embeddings": False,
        },
        fewer_experts,
    ),
    "hunyuan-moe": Case("HunYuanMoEV1Config", HUNYUAN, not_renormalised),
    "hunyuan-moe-each-layer-its-own": Case(
        "HunYuanMoEV1Config", {**HUNYUAN, "moe_topk": [1, 3, 2], "attention_bias": True}, two_experts
    ),
    "llama4": Case("Llama4TextConfig", LLAMA4, wider_chunk),
    "llama4-dense-layers-no-norm": Case(
        "Llama4TextConfig",
        {**LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False, "attention_bias": True},
        not_weighed_before,
    ),
    "llama4-two-experts": Case(
        "Llama4TextConfig", {**LLAMA4, "num_experts_per_tok": 2, "floor_scale": 30}, slower_growth
    ),
    "deepseek-v2": Case("DeepseekV2Config", DEEPSEEK, renormalised),
    "deepseek-v2-groups-yarn": Case(
        "DeepseekV2Config",
        {
            **DEEPSEEK,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "q_lora_rank": None,
            "routed_scaling_factor": 2.5,
            "rope_parameters": MSCALED,
            "mlp_bias": True,
            "attention_bias": True,
        },
        unscaled_scores,
    ),
    "deepseek-v3": Case(
        "DeepseekV3Config", {**DEEPSEEK, "n_group": 4, "topk_group": 2}, routing(groups=1, open_groups=1)
    ),
    "deepseek-v3-yarn-halves": Case(
        "DeepseekV3Config",
        {
            **DEEPSEEK,
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": MSCALED,
            "rope_interleave": False,
            "attention_bias": True,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
        },
        no_attention_factor_of_latents,
    ),
    "deepseek-v3-as-older-configs-say-it": Case(
        "DeepseekV3Config",
        {**DEEPSEEK, "n_group": 2, "topk_group": 1, "rope_parameters": MSCALED, "q_lora_rank": None},
        narrower,
        drop=("rope_parameters",),
        edit={
            "rope_scaling": {**{k: v for k, v in MSCALED.items() if "rope" not in k}, "type": "yarn"},
            "rope_theta": 1e4,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "moe_layer_freq": 1,
        },
    ),
    "glm4-moe-lite": Case("Glm4MoeLiteConfig", DEEPSEEK, routing(scale=1.0)),
    "glm4-moe-lite-layers": Case(
        "Glm4MoeLiteConfig", {**DEEPSEEK, "mlp_layer_types": ["sparse", "dense", "sparse"]}, fewer_experts
    ),
    "gpt-oss": Case("GptOssConfig", {**GPT_OSS, "swiglu_limit": 1.0}, no_clamp),
    "gpt-oss-window": Case("GptOssConfig", GPT_OSS, wider_window),
    "gpt-oss-rope-no-bias": Case(
        "GptOssConfig",
        {**GPT_OSS, "attention_bias": False, "layer_types": ["full_attention"] * 3, "rope_parameters": YARN},
        no_attention_factor,
    ),
    "gemma4": Case("Gemma4TextConfig", GEMMA4, wider_window),
    "gemma4-no-inputs": Case("Gemma4TextConfig", {**GEMMA4, "hidden_size_per_layer_input": 0}, fewer_experts),
    "minimax-m2": Case("MiniMaxM2Config", MINIMAX, not_renormalised),
    "minimax-m2-part-of-heads": Case("MiniMaxM2Config", {**MINIMAX, "rotary_dim": 8}, whole_heads),
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CASES, PROMPTS)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["whole", "chunked"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, expected = saved(name)
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=tokens, **CASES[name].options)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_logits_on_torchs_executor(name: str, saved: Saved) -> None:
    folder, expected = saved(name)
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=96, attention_backend="torch", **CASES[name].options)
    assert largest_difference(actual, expected) < TOLERANCE


LACKING = {
    "gemma4-no-inputs": "does not support NormValues",
    "gemma4": "does not support JoinInputs",
}
"""Reasons why the CPU kernels cannot compute cases, by prefix of their names."""


@pytest.mark.matrix(10)
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_each(name: str, saved: Saved) -> None:
    """Makes sure that the comparison above uses the kernels if they were built and support the case."""
    files = resolve(str(saved(name)[0]))
    lacking = why_not_fused(program_of(registry.describe(files.config)))
    assert lacking == next((reason for kind, reason in LACKING.items() if name.startswith(kind)), None)
    chosen = backend_of(files, torch.float32)
    assert (chosen.name == "cpu") == (kernels(torch.float32) is not None and lacking is None)


@pytest.mark.long
def test_every_mixture_is_compared(saved: Saved) -> None:
    assert {registry.describe(resolve(str(saved(name)[0])).config).architecture for name in CASES} == MIXTURES


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_has_all_that_its_steps_compute_with(name: str, saved: Saved) -> None:
    """Its graphs must not use the host: checked with hollow tensors for a device that does not exist."""
    pytest.importorskip("triton")
    from kernel_support.fake_gpu import asked_of_the_host

    assert asked_of_the_host(saved(name)[0]) == []


@pytest.mark.matrix(6)
@pytest.mark.parametrize("name", with_mistakes(CASES))
def test_a_mistake_would_show(name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the comparison above: with one wrong detail of the spec the logits differ widely."""
    CASES[name].be_mistaken(monkeypatch)
    folder, expected = saved(name)
    assert largest_difference(of_engine(str(folder), PROMPTS, **CASES[name].options), expected) > VISIBLE
