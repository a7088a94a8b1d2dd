"""Log probabilities from GGUF files equal those of Transformers with the tensors that the gguf package decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import RopeScalingType
from model_support.forward import largest_difference, of_decoder, of_transformers
from model_support.gguf_files import decoded_by_gguf, reference_of, write_gguf
from model_support.tiny import make_model, prompts

from plimsoll_runtime.weights.sources import resolve

TOLERANCE = 1e-3
PROMPTS = prompts((1, 30, 100))


@dataclass(frozen=True)
class Case:
    """A model to write and read back."""

    config: str
    values: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
"""Rows of 256, the block of the K types."""
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
}
FAMILIES: Mapping[str, Case] = {
    "llama": Case("LlamaConfig", SIZES),
    "qwen2": Case("Qwen2Config", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": Case("Qwen3Config", {**SIZES, "head_dim": 64}),
    "gemma3": Case(
        "Gemma3TextConfig",
        {**SIZES, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16, "num_hidden_layers": 6},
    ),
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
        {"rope_scaling_type": RopeScalingType.YARN, "rope_scaling_factor": 8.0, "rope_scaling_orig_ctx_len": 32},
    ),
    "qwen3-theta": Case("Qwen3Config", {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 50}}),
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
    actual = of_decoder(resolve(str(path)), PROMPTS, chunk=33)
    assert largest_difference(actual, expected) < TOLERANCE
    if kind is Kind.F32:
        assert largest_difference(actual, of_transformers(model, PROMPTS)) < TOLERANCE, "against the saved model"


@pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])
@pytest.mark.parametrize("family", FAMILIES)
def test_types(family: str, kind: Kind, tmp_path: Path) -> None:
    compare(FAMILIES[family], kind, tmp_path / "model.gguf")


@pytest.mark.parametrize("name", DETAILS)
def test_details(name: str, tmp_path: Path) -> None:
    compare(DETAILS[name], Kind.F32, tmp_path / "model.gguf")
