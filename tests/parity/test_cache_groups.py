"""Cache groups with windows free blocks without changing log probabilities: alone, batched, chunked, preempted, with
prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.configs import LATENT
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.tiny import make_model, prompts, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.kv.cache_groups import Full

TOLERANCE = 1e-3
SLIDING, FULL = "sliding_attention", "full_attention"
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 16, "layer_types": [SLIDING] * 5 + [FULL], "num_hidden_layers": 6},
    ),
    "uneven": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 21, "layer_types": [SLIDING, FULL, SLIDING], "num_hidden_layers": 3},
    ),
    "alternating": (
        "Gemma2Config",
        {"head_dim": 16, "sliding_window": 37, "num_hidden_layers": 4, "query_pre_attn_scalar": 24},
    ),
    "shared": (
        "Gemma3nTextConfig",
        {
            "head_dim": 16,
            "sliding_window": 21,
            "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "intermediate_size": [80] * 6,
            "activation_sparsity_pattern": [0.5, 0.0] * 3,
            "vocab_size_per_layer_input": 20,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
        },
    ),
    "larger-heads": (
        "Gemma4TextConfig",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 21,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "num_hidden_layers": 5,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "window-alone": ("Starcoder2Config", {"sliding_window": 19, "hidden_size": 64}),
    "sinks": ("GraniteSWAConfig", {"hidden_size": 64, "num_hidden_layers": 4, "sliding_window": 16}),
    "in-chunks": (
        "Llama4TextConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "attention_chunk_size": 32,
            "floor_scale": 16,
            "moe_layers": [],
            "intermediate_size_mlp": 48,
        },
    ),
    "slopes": ("BloomConfig", {"hidden_size": 64, "n_layer": 3, "n_head": 4}),
    "latent": ("YoutuConfig", LATENT),
}
GROUPS = {
    "gemma3": 6,
    "uneven": 3,
    "alternating": 2,
    "shared": 3,
    "larger-heads": 2,
    "window-alone": 1,
    "sinks": 4,
    "in-chunks": 4,
    "slopes": 1,
    "latent": 1,
}
KEEPS_ALL = ("slopes", "latent")
"""Cases with one cache group that frees nothing."""
SHARED = prompts((96,))[0]
TEXTS = [*prompts((1, 17, 40, 200)), *([*SHARED[:end], *tail] for end in (96, 64, 33) for tail in ([3, 4], [5]))]
"""Texts that exceed each window and its borders, some with a common beginning."""


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Tensor], int]:
    """Return a folder, Transformers' log probabilities, and the number of cache groups."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_model(make_model(*MODELS[request.param]), folder)
    return str(folder), of_transformers(loaded_by_transformers(folder), TEXTS), GROUPS[request.param]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("backend", ["cpu", "torch", "sdpa", "reference"])
def test_every_backend(served: tuple[str, list[Tensor], int], backend: str) -> None:
    folder, expected, _ = served
    if backend == "sdpa" and "alternating" in folder:
        pytest.skip("sdpa does not support soft caps")
    if backend == "cpu" and ("shared" in folder or "larger-heads" in folder):
        pytest.skip("the CPU kernels norm no values, and have no layers that read the keys of another")
    found = of_engine(folder, TEXTS, attention_backend=backend, max_batch_tokens=48)
    assert largest_difference(found, expected) < TOLERANCE


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "options",
    [
        {"max_sequences": 1},
        {"max_batch_tokens": 1024},
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 23, "block_size": 8},
        {"overlap": True, "max_batch_tokens": 32},
    ],
    ids=["alone", "batched", "chunks-of-16", "chunks-of-23", "overlapping"],
)
def test_every_way_to_cut_it(served: tuple[str, list[Tensor], int], options: Mapping[str, Any]) -> None:
    folder, expected, _ = served
    assert largest_difference(of_engine(folder, TEXTS, **options), expected) < TOLERANCE


def load(folder: str, **options: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 256,
        "check_integrity_every": 1,
        "overlap": False,
    }
    return LLM(folder, **(defaults | options))


def held_for(folder: str, sequences: float) -> int:
    """Return the bytes of a cache for this number of the longest sequences."""
    info = load(folder, kv_memory="8MiB").info
    return round(sequences * (info.least_blocks - 1) + 1) * (info.kv_bytes // info.num_blocks)


def told(llm: LLM, texts: Sequence[Sequence[int]], tokens: int) -> tuple[list[Tensor], list[list[int]], list[int]]:
    """Return log probabilities of generated tokens [tokens, vocab], the tokens, and the number of cached tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=llm.info.vocab_size)
    results = llm.generate([list(text) for text in texts], params)
    rows = []
    for result in results:
        assert result.outputs[0].logprobs is not None
        reports = [dict(report.top) for report in result.outputs[0].logprobs]
        rows.append(torch.tensor([[row[i] for i in range(len(row))] for row in reports], dtype=torch.float64))
    return rows, [list(result.outputs[0].token_ids) for result in results], [r.cached_tokens for r in results]


def check(folder: str, texts: Sequence[Sequence[int]], found: list[Tensor], tokens: list[list[int]]) -> None:
    """Compare with one pass of Transformers over each prompt with its output."""
    whole = [[*text, *answer[:-1]] for text, answer in zip(texts, tokens, strict=True)]
    expected = of_transformers(loaded_by_transformers(folder), whole)
    parts = [rows[len(text) - 1 :] for rows, text in zip(expected, texts, strict=True)]
    assert largest_difference(found, parts) < TOLERANCE


@pytest.mark.matrix(4)
def test_groups_are_there(served: tuple[str, list[Tensor], int]) -> None:
    folder, _, groups = served
    rules = load(folder, kv_memory="8MiB").info.groups
    assert len(rules) == groups
    assert isinstance(rules[-1], Full) == any(name in folder for name in KEEPS_ALL)


@pytest.mark.long
def test_preemption_in_a_small_cache(served: tuple[str, list[Tensor], int]) -> None:
    folder, _, _ = served
    llm = load(folder, kv_memory=str(held_for(folder, 1.4)), max_batch_tokens=64)
    texts = prompts((2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
    found, tokens, _ = told(llm, texts, 90)
    assert llm.stats.preemptions > 0
    check(folder, texts, found, tokens)


@pytest.mark.long
def test_prefixes_whose_blocks_are_partly_gone(served: tuple[str, list[Tensor], int]) -> None:
    """Runs prompts one after the other in a cache where each takes blocks of earlier ones."""
    folder, _, _ = served
    llm = load(folder, kv_memory=str(held_for(folder, 1.7)), max_batch_tokens=64)
    long = prompts((150,))[0]
    texts = [[*long[:end], *tail] for tail in ([], [7, 8, 9]) for end in (150, 70, 110, 33, 96, 149, 128)]
    texts += [*prompts((90, 91)), *texts]
    cached = []
    for text in texts:
        found, tokens, reused = told(llm, [text], 20)
        check(folder, [text], found, tokens)
        cached += reused
    assert llm.stats.evictions > 0
    assert sum(count > 0 for count in cached) > len(texts) // 2
    partly = [count for count, text in zip(cached, texts, strict=True) if 0 < count < len(text) - 20]
    if not any(name in folder for name in KEEPS_ALL):
        assert partly, "some prefix is found in part"
