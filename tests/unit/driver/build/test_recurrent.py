"""Engines of models with recurrent layers: memory, missing features, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.tiny import make_model, save_model

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.driver.estimate import measure
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import blocks_within
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.weights.sources.resolve import resolve

DUAL: Mapping[str, Any] = {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 10}
OPTIONS: Mapping[str, Any] = {"dtype": "float32", "threads": 1, "max_batch_tokens": 32, "max_sequences": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mamba2")
    save_model(make_model("Mamba2Config", DUAL), folder)
    return str(folder)


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("lfm2")
    save_model(make_model("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}), folder)
    return str(folder)


def test_a_model_in_which_nothing_attends_has_no_cache(mamba: str) -> None:
    llm = LLM(mamba, **OPTIONS)
    backend = "none" if kernels(torch.float32) is None else "cpu"
    assert (llm.info.attention_backend, llm.info.kv_bytes, llm.info.max_model_len) == (backend, 0, 2**20)
    results = llm.generate([[n, 3, 5] for n in range(9)], GREEDY)
    assert [len(result.outputs[0].token_ids) for result in results] == [3] * 9
    assert llm.stats.preemptions == 0
    with pytest.raises(UsageError, match="the model has no attention layers, so it has no KV cache"):
        blocks_within(0, llm.info)


@pytest.mark.parametrize("model", ["mamba", "lfm2"])
def test_a_prefix_is_found_as_far_as_its_snapshot(model: str, request: pytest.FixtureRequest) -> None:
    kv: dict[str, Any] = {} if model == "mamba" else {"kv_memory": "1MiB"}
    folder, prompt = request.getfixturevalue(model), list(range(20)) * 4
    llm = LLM(folder, **OPTIONS, **kv)
    first, again = (llm.generate([prompt], GREEDY)[0] for _ in range(2))
    assert (llm.stats.cache_hit_tokens, llm.stats.prompt_tokens) == (64, 80 + 16)
    assert (llm.info.snapshots, again.cached_tokens) == (8, 64)
    without = LLM(folder, **OPTIONS, **kv, state_snapshots=0)
    alone = [without.generate([prompt], GREEDY)[0] for _ in range(2)]
    assert (without.stats.cache_hit_tokens, without.stats.prompt_tokens) == (0, 160)
    assert len({tuple(result.outputs[0].token_ids) for result in (first, again, *alone)}) == 1


def test_snapshots_are_paid_from_the_same_memory(mamba: str) -> None:
    kept = outline_of(resolve(mamba).config).facts.state_bytes(4)
    few, more = (measure(EngineConfig(model=mamba, **OPTIONS, state_snapshots=n)) for n in (0, 40))
    assert more.workspace - few.workspace == 40 * kept
    llm = LLM(mamba, **OPTIONS, state_snapshots=40)
    assert llm.info.snapshot_bytes == 40 * kept
    assert (llm.info.workspace_bytes, llm.info.snapshots) == (more.workspace, 40)


def test_snapshots_that_serve_nothing_are_refused(mamba: str, tmp_path: Path) -> None:
    save_model(make_model("LlamaConfig", {}), tmp_path)
    for options, told in (
        ({"model": str(tmp_path)}, "needs recurrent layers with states that can be copied"),
        ({"prefix_caching": False}, "needs prefix caching, but --no-prefix-caching is set"),
    ):
        with pytest.raises(UsageError, match=f"--state-snapshots 3 {told}"):
            measure(EngineConfig(**{"model": mamba, **OPTIONS, "state_snapshots": 3, **options}))


def test_what_is_kept_of_sequences_is_counted(mamba: str) -> None:
    kept = outline_of(resolve(mamba).config).facts.state_bytes(4)
    assert kept == 3 * 4 * (3 * (96 + 2 * 2 * 10) + 8 * 12 * 10)
    few, more = (measure(EngineConfig(model=mamba, **{**OPTIONS, "max_sequences": n})) for n in (4, 6))
    rows = 2 if kernels(torch.float32) is None else 1
    assert more.workspace - few.workspace >= 2 * rows * kept
    assert (few.block_bytes, few.kv_least, few.kv_most) == (0, 0, 0)


def test_more_sequences_than_memory_holds_are_refused(mamba: str) -> None:
    with pytest.raises(MemoryLimitError, match="including recurrent states of every sequence: lower --max-seq"):
        LLM(mamba, **{**OPTIONS, "max_sequences": 2**31})


def test_tiers_for_prefixes_are_refused(lfm2: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recurrent layers \(Lfm2ForCausalLM\); omit them"):
        LLM(lfm2, **OPTIONS, kv_memory="1MiB", kv_disk=str(tmp_path), kv_disk_size="1MiB")
