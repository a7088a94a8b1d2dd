"""Accuracy of bfloat16 and GGUF files on the device: a GPU if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gpu_support.device import DEVICE
from model_support.configs import LATENT
from model_support.forward import of_engine, of_transformers
from model_support.gguf_files import decoded_by_gguf, reference_of, write_gguf
from model_support.tiny import make_model, prompts, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 90, 300))
WORDS = 300
"""llama.cpp's vocabularies contain all bytes and are larger than those of the other tests."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SIZES = {"hidden_size": 64, "head_dim": 16}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("Qwen3Config", SIZES),
    "gemma3": ("Gemma3TextConfig", {**SIZES, "sliding_window": 16, "query_pre_attn_scalar": 16}),
    "mixture": ("Qwen3MoeConfig", {**SIZES, **EXPERTS}),
    "latent": ("YoutuConfig", LATENT),
    "sinks": ("GraniteSWAConfig", {"hidden_size": 64, "num_hidden_layers": 4, "sliding_window": 16}),
}
ROOM = 1.5
"""Tolerance factor: the order of sums changes rounding, but a mistake is far larger."""


def error(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the root mean square of the differences of probabilities."""
    return float(
        torch.cat([(a.exp() - b.exp()).flatten() for a, b in zip(one, other, strict=True)]).square().mean() ** 0.5
    )


@pytest.mark.matrix(2)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["whole", "chunked"])
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_errs_no_more_than_transformers(name: str, tokens: int, tmp_path: Path) -> None:
    save_model(make_model(*CASES[name]).to(torch.bfloat16), tmp_path)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    exact, rounded = (
        of_transformers(load(tmp_path, dtype=dtype).eval(), PROMPTS) for dtype in (torch.float32, torch.bfloat16)
    )
    ours = of_engine(str(tmp_path), PROMPTS, dtype="bfloat16", max_batch_tokens=tokens)
    assert 0 < error(ours, exact) < ROOM * error(rounded, exact)


@pytest.mark.parametrize("kind", [Kind.BF16, Kind.Q8_0, Kind.Q4_K], ids=lambda kind: kind.name)
def test_gguf_files(kind: Kind, tmp_path: Path) -> None:
    """Compares log probabilities of the actual tokens and of the likeliest ones."""
    path = tmp_path / "model.gguf"
    model = make_model("Qwen3Config", {**SIZES, "vocab_size": WORDS, "hidden_size": 256, "intermediate_size": 256})
    write_gguf(model, path, kind, spelt=True)
    asked = prompts((17, 90), vocab=WORDS)
    expected = of_transformers(reference_of(model.config, decoded_by_gguf(path)), asked)
    llm = LLM(str(path), dtype="float32", threads=1, kv_memory="4MiB")
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=3, prompt_logprobs=3)
    for result, rows in zip(llm.generate(asked, params), expected, strict=True):
        assert result.prompt_logprobs is not None
        for report, row in zip(result.prompt_logprobs, rows, strict=False):
            assert report.logprob == pytest.approx(float(row[report.token_id]), abs=TOLERANCE)
            assert [value for _, value in report.top] == pytest.approx(row.topk(3).values.tolist(), abs=TOLERANCE)
        assert len(result.prompt_logprobs) == len(rows) - 1


def test_the_engine_is_where_these_tests_say_it_is(tmp_path: Path) -> None:
    save_model(make_model("LlamaConfig", SIZES), tmp_path)
    info = LLM(str(tmp_path), dtype="float32", threads=1, kv_memory="1MiB").info
    assert info.device == DEVICE.type
    assert (info.attention_backend == "triton") == (DEVICE.type == "cuda")
