"""Engines on a device whose copies complete long after their steps give the same texts and read no frame too early."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from kernel_support.late_copies import LateCopies
from model_support.tiny import make_model, prompts, save_model

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build import engine
from plimsoll_runtime.engine.kv.offload.costs import Costs

PROMPTS = prompts((97,) * 8, seed=3)
"""7 blocks each; the pool holds two of them."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SECONDS = 10.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_model(make_model("LlamaConfig", {"hidden_size": 64}), folder)
    return folder


@pytest.fixture(autouse=True)
def tiers_are_for_any_device_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of such a small model is not learnt."""
    monkeypatch.setattr(engine, "check_tier_options", lambda config, device: None)
    monkeypatch.setattr(Costs, "learn_computed", lambda costs, tokens, ns: None)


def load(model: Path, **options: Any) -> LLM:
    small = {"kv_memory": "192KiB", "max_model_len": 128, "dtype": "float32", "threads": 1}
    return LLM(str(model), attention_backend="sdpa", check_integrity_every=1, **{**small, **options})


def disk_of(folder: Path) -> dict[str, str]:
    return {"kv_disk": str(folder), "kv_disk_size": "4MiB"}


def ask(llm: LLM, times: int) -> list[list[int]]:
    texts = []
    for _ in range(times):
        for prompt in PROMPTS:
            texts += [result.outputs[0].token_ids for result in llm.generate([prompt], GREEDY)]
            index = llm._engine._scheduler._kv.tiers.index  # type: ignore[union-attr]
            while index.in_flight:
                index.wait(SECONDS)
                index.poll()
        texts += [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
    return texts


@pytest.mark.long
@pytest.mark.parametrize("questions", [1, 3, 40])
@pytest.mark.parametrize(
    "options",
    [
        {"kv_host_memory": "2MiB"},
        {"kv_host_memory": "1MiB", "max_batch_tokens": 32, "max_sequences": 3},
        {"disk": True},
        {"disk": True, "kv_host_memory": "256KiB", "overlap": False},
    ],
)
def test_the_same_texts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], questions: int
) -> None:
    plain = load(model, prefix_caching=False)
    expected = [plain.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in PROMPTS]
    copies = LateCopies(questions)
    copies.install(monkeypatch)
    more = disk_of(tmp_path) if "disk" in options else {}
    options = {name: value for name, value in options.items() if name != "disk"}
    llm = load(model, **{"overlap": True, **options, **more})
    assert ask(llm, times=3) == expected * 6
    assert copies.spoilt == 0
    assert copies.passed > 0, "blocks came back"
    assert llm.stats.tiers is not None
    assert llm.stats.tiers.failed == 0
    llm.close()
    del llm
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "kv-disk":
            thread.join(SECONDS)
