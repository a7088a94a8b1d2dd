"""Every build of the CPU kernels gives Transformers' results in float32, and is not less accurate in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from kernel_support.instructions import BFLOAT16, FLOAT32, Build, forced
from model_support.forward import largest_difference, of_engine, of_transformers
from model_support.tiny import make_model, prompts, save_model
from torch import Tensor

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 90, 300))
SIZES = {"hidden_size": 64, "head_dim": 16}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "mistral-window": ("MistralConfig", {"head_dim": 16, "sliding_window": 16}),
    "qwen2": ("Qwen2Config", {"hidden_size": 64, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3Config", SIZES),
    "gemma3": (
        "Gemma3TextConfig",
        {**SIZES, "sliding_window": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0},
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Tensor], list[Tensor]]]:
    """Return a model with bfloat16 weights, and Transformers' results in float32 and in bfloat16."""

    @cache
    def make(name: str) -> tuple[Path, list[Tensor], list[Tensor]]:
        folder = tmp_path_factory.mktemp(name)
        save_model(make_model(*CASES[name]).to(torch.bfloat16), folder)
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        expected, in_bfloat16 = (
            of_transformers(load(folder, dtype=dtype).eval(), PROMPTS) for dtype in (torch.float32, torch.bfloat16)
        )
        return folder, expected, in_bfloat16

    return make


def ours(folder: Path, build: Build) -> list[Tensor]:
    dtype = str(build.dtype).removeprefix("torch.")
    with forced(build):
        return of_engine(str(folder), PROMPTS, dtype=dtype, attention_backend="cpu")


def error(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the root mean square of the differences of log probabilities."""
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).square().mean().sqrt())


@pytest.mark.matrix(3)
@pytest.mark.parametrize("build", FLOAT32, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_float32_equals_transformers(name: str, build: Build, saved: Callable[[str], Any]) -> None:
    folder, expected, _ = saved(name)
    assert largest_difference(ours(folder, build), expected) < TOLERANCE


@pytest.mark.matrix(6)
@pytest.mark.parametrize("build", BFLOAT16, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_errs_no_more_than_transformers(name: str, build: Build, saved: Callable[[str], Any]) -> None:
    folder, expected, in_bfloat16 = saved(name)
    assert 0 < error(ours(folder, build), expected) < error(in_bfloat16, expected)
