"""Log probabilities from GGUF files equal Transformers' with tensors decoded by the gguf package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import RopeScalingType
from gpu_support.device import DEVICE
from model_support.forward import largest_difference, of_decoder, of_transformers
from model_support.gguf_cases import CONVERTED, FAMILIES, GEMMA_ROPES, HYBRIDS, LLAMA3, MORE, YARN, Case
from model_support.gguf_converted import OWN_WAYS
from model_support.gguf_files import decoded_by_gguf, reference_of, round_to, write_gguf
from model_support.tiny import make_model, prompts
from torch import Tensor

from plimsoll_runtime.weights.gguf.families import FAMILIES as GGUF
from plimsoll_runtime.weights.sources.resolve import resolve

TOLERANCE, MIXED = 1e-3, 2e-3
"""Tolerances; the second is for mixtures, in which two experts may have nearly equal scores."""
PROMPTS = prompts((1, 30, 100))


STRETCHED: Mapping[str, Any] = {
    "rope_scaling_type": RopeScalingType.YARN,
    "rope_scaling_factor": 8.0,
    "rope_scaling_orig_ctx_len": 32,
}
KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_K, Kind.Q6_K]
DETAILS: Mapping[str, Case] = {
    "llama-own-head-dim": Case("LlamaConfig", {"head_dim": 32, "num_key_value_heads": 1}),
    "llama-all-kv-heads-tied": Case("LlamaConfig", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-biases": Case("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": Case(
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}},
        {"rope_scaling_type": RopeScalingType.LINEAR, "rope_scaling_factor": 8.0},
    ),
    "llama-llama3": Case("LlamaConfig", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "qwen2-yarn": Case(
        "Qwen2Config",
        {"rope_parameters": YARN},
        STRETCHED,
    ),
    "qwen3-theta": Case("Qwen3Config", {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 50}}),
    "exaone4-windows": Case(  # llama.cpp supports windows only for the model with 64 layers
        "Exaone4Config", {"num_hidden_layers": 4, "sliding_window": 16, "sliding_window_pattern": 4}
    ),
    "gemma3-scaled-rope": Case(
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 16,
            "num_hidden_layers": 7,
            "rope_parameters": GEMMA_ROPES,
        },
        {"rope_scaling_type": RopeScalingType.LINEAR, "rope_scaling_factor": 8.0},
    ),
}


def compare(case: Case, kind: Kind, path: Path) -> None:
    model = make_model(case.config, case.values)
    write_gguf(model, path, kind, **case.extra)
    expected = of_transformers(reference_of(model.config, decoded_by_gguf(path)), PROMPTS)
    actual = of_decoder(resolve(str(path)), PROMPTS, chunk=33, device=DEVICE)
    assert largest_difference(actual, expected) < TOLERANCE
    if kind is Kind.F32:
        assert largest_difference(actual, of_transformers(model, PROMPTS)) < TOLERANCE, "against the saved model"


def compare_converted(model: Any, kind: Kind, path: Path, expected: list[Tensor] | None = None, **extra: Any) -> None:
    """Compare with the model itself, whose numbers the type stores exactly. `expected`: its results, if known."""
    write_gguf(model, path, kind, **extra)
    actual = of_decoder(resolve(str(path)), PROMPTS, chunk=33, device=DEVICE)
    assert largest_difference(actual, expected or of_transformers(model, PROMPTS)) < MIXED


@pytest.mark.matrix(5)
@pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])
@pytest.mark.parametrize("family", FAMILIES)
def test_types(family: str, kind: Kind, tmp_path: Path) -> None:
    compare(FAMILIES[family], kind, tmp_path / "model.gguf")


def test_a_file_in_parts(tmp_path: Path) -> None:
    model = make_model("Qwen2Config", {})
    write_gguf(model, tmp_path / "model.gguf", Kind.F32, parts_of=10)
    first, *others = sorted(tmp_path.iterdir())
    assert others
    actual = of_decoder(resolve(str(first)), PROMPTS, chunk=33, device=DEVICE)
    assert largest_difference(actual, of_transformers(model, PROMPTS)) < TOLERANCE


@pytest.mark.matrix(4)
@pytest.mark.parametrize("name", MORE)
def test_more_families(name: str, tmp_path: Path) -> None:
    compare(MORE[name], Kind.F32, tmp_path / "model.gguf")


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", [*CONVERTED, *HYBRIDS])
def test_families_whose_tensors_change(name: str, tmp_path: Path) -> None:
    """Compares with the model itself, whose numbers eight bits a block store exactly: plain and quantised."""
    case = {**CONVERTED, **HYBRIDS}[name]
    model = make_model(case.config, case.values)
    round_to(model, Kind.Q8_0)
    expected = of_transformers(model, PROMPTS)
    for kind in (Kind.F32, Kind.Q8_0):
        compare_converted(model, kind, tmp_path / f"{kind.name}.gguf", expected, **case.extra)


def test_latent_attention_as_older_files_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses separate keys and values for each head, and no key for the scoring of experts."""
    case = CONVERTED["deepseek2-v2"]
    model = make_model(case.config, case.values)
    monkeypatch.delitem(OWN_WAYS, "deepseek_v2")
    newer = (
        "key_length_mla",
        "value_length_mla",
        "expert_gating_func",
        "expert_group_count",
        "expert_group_used_count",
    )
    older: dict[str, Any] = {**dict.fromkeys(newer), "key_length": 48, "value_length": 32, "head_count_kv": 4}
    compare_converted(model, Kind.F32, tmp_path / "model.gguf", **older)


def test_groups_of_experts_as_the_second_deepseek_has_them(tmp_path: Path) -> None:
    """A group's score is that of its best expert. (llama.cpp uses the two best, as for V3.)"""
    groups = {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"}
    model = make_model("DeepseekV2Config", {**CONVERTED["deepseek2-v2"].values, **groups})
    compare_converted(model, Kind.F32, tmp_path / "model.gguf")


def test_a_stretched_rope_of_latent_attention(tmp_path: Path) -> None:
    """The file has a tenth of the factor of scores."""
    rope = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
    model = make_model("DeepseekV3Config", {**CONVERTED["deepseek2"].values, "rope_parameters": rope})
    compare_converted(model, Kind.F32, tmp_path / "model.gguf", **STRETCHED, rope_scaling_yarn_log_mul=0.07)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """Includes a yarn rope whose range is not rounded in gpt-oss."""
    rope = {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
    model = make_model("GptOssConfig", {**CONVERTED["gpt-oss"].values, "rope_parameters": rope})
    round_to(model, Kind.MXFP4)
    compare_converted(model, Kind.MXFP4, tmp_path / "model.gguf", **STRETCHED)


def test_every_architecture_is_compared() -> None:
    compared = {
        *FAMILIES,
        *MORE,
        *(name.removesuffix("-sequential").removesuffix("-grouped") for name in CONVERTED),
        *HYBRIDS,
    } - {
        "llama-mixtral",
        "gemma4-values-of-keys",
        "deepseek2-v2",
        "mamba-falcon",
        "granitehybrid-dense",
        "olmo2-windows",
    }
    assert {name.split("-parallel")[0] for name in compared} == set(GGUF)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", DETAILS)
def test_details(name: str, tmp_path: Path) -> None:
    compare(DETAILS[name], Kind.F32, tmp_path / "model.gguf")
