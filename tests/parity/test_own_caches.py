"""Transformers code with its own caches gives Transformers' log probabilities in any steps.

Covers classes with their own attention, recurrent ones and hybrids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.tiny import VOCAB, make_model, prompts, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.execution.kv.states import OwnCaches
from plimsoll_runtime.models.transformers_code.cache_rows import Rows

TOLERANCE = 1e-3
VISIBLE = 0.05
PROMPTS = prompts((1, 17, 40, 40, 120))
"""Two of one length, and one longer than each window and chunk below."""
TWO = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
SMALL_MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_chunk_size": 16}

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bloom": ("BloomConfig", {"n_layer": 3, "n_head": 4}),
    "codegen": ("CodeGenConfig", {"n_embd": 48, "n_layer": 3, "n_head": 4, "rotary_dim": 8}),
    "gpt-1": ("OpenAIGPTConfig", {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "gpt-neox-japanese": ("GPTNeoXJapaneseConfig", {}),
    "gpt-oss": ("GptOssConfig", {**EXPERTS, "head_dim": 16, "sliding_window": 16}),
    "jamba": ("JambaConfig", {**EXPERTS, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_dt_rank": 4}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    "llama4": (
        "Llama4TextConfig",
        {**EXPERTS, "attention_chunk_size": 16, "head_dim": 12, "intermediate_size_mlp": 80},
    ),
    "mamba": ("MambaConfig", {}),
    "minimax": (
        "MiniMaxConfig",
        {**EXPERTS, "block_size": 16, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
    ),
    "mpt": ("MptConfig", {"d_model": 48, "n_heads": 4, "n_layers": 3, "max_seq_len": 256}),
    "qwen3-next": (
        "Qwen3NextConfig",
        {
            **EXPERTS,
            **TWO,
            "head_dim": 16,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "recurrent-gemma": (
        "RecurrentGemmaConfig",
        {"attention_window_size": 16, "lru_width": 48, "head_dim": 12, "num_key_value_heads": 1},
    ),
    "rwkv": ("RwkvConfig", {"context_length": 256, "num_hidden_layers": 7}),
    "xglm": ("XGLMConfig", {"d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 4}),
}

Saved = Callable[[str], tuple[Path, Any, list[Tensor]]]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Return a case's folder, the model as Transformers loads it, and its results."""

    @cache
    def make(name: str) -> tuple[Path, Any, list[Tensor]]:
        config, values = CASES[name]
        folder = tmp_path_factory.mktemp(name)
        save_model(make_model(config, values), folder)
        reference = loaded_by_transformers(folder)
        return folder, reference, of_transformers(reference, PROMPTS)

    return make


def computed(folder: Path, **options: Any) -> list[Tensor]:
    return of_engine(str(folder), PROMPTS, model_impl="transformers", **options)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 24], ids=["together", "in-chunks"])
def test_logits_equal_transformers(name: str, tokens: int, saved: Saved) -> None:
    folder, _, expected = saved(name)
    assert largest_difference(computed(folder, max_batch_tokens=tokens), expected) < TOLERANCE


def engine(folder: Path, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "threads": 1, "kv_memory": "4MiB", "check_integrity_every": 1}
    return LLM(str(folder), model_impl="transformers", **{**defaults, **options})


def answers(folder: Path, params: SamplingParams, **options: Any) -> list[Any]:
    return [result.outputs for result in engine(folder, **options).generate(PROMPTS, params)]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", CASES)
def test_answers_of_mixed_lengths(name: str, saved: Saved) -> None:
    """Compares each token of concurrent outputs, some of which are at the same position."""
    folder, reference, _ = saved(name)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=VOCAB)
    for prompt, [output] in zip(PROMPTS, answers(folder, params, max_batch_tokens=64), strict=True):
        [expected] = of_transformers(reference, [[*prompt, *output.token_ids][:-1]])
        rows = torch.tensor([[dict(r.top)[i] for i in range(VOCAB)] for r in output.logprobs], dtype=torch.float64)
        assert largest_difference([rows], [expected[-12:]]) < TOLERANCE


@pytest.mark.parametrize("name", ["bloom", "jamba", "rwkv"])
def test_several_answers_of_one_prompt(name: str, saved: Saved) -> None:
    """The outputs are rows of one cache throughout, and each equals the output alone."""
    folder, _, _ = saved(name)
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=8, ignore_eos=True) for seed in range(3)]
    together = engine(folder).generate([PROMPTS[2]] * 3, params)
    found = [result.outputs[0].token_ids for result in together]
    assert len({tuple(each) for each in found}) > 1
    assert all(result.cached_tokens == 0 for result in together)
    alone = engine(folder, max_sequences=1).generate([PROMPTS[2]] * 3, params)
    assert found == [result.outputs[0].token_ids for result in alone]


@pytest.mark.parametrize("name", ["bloom", "jamba"])
def test_aborted_requests(name: str, saved: Saved) -> None:
    """Aborts rows of a shared cache; another request takes the slot, and the remaining rows are unchanged."""
    folder, _, _ = saved(name)
    config = EngineConfig(model=str(folder), model_impl="transformers", dtype="float32", threads=1, kv_memory="4MiB")
    core = build_engine(config, lambda stage, fraction: None)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    found: dict[str, list[int]] = {name: [] for name in "abcd"}

    def run(steps: int) -> None:
        for _ in range(steps):
            for output in core.step().outputs:
                found[output.request_id] += output.token_ids

    for name_, prompt in zip("abc", ([3] * 20, [4] * 20, [5] * 20), strict=True):
        core.add(AddRequest(name_, prompt, RequestContext(params, seed=0)))
    run(5)
    core.abort(["b"])
    core.add(AddRequest("d", [6] * 30, RequestContext(params, seed=0)))
    while core.has_work:
        run(1)
    expected = engine(folder).generate([[3] * 20, [5] * 20, [6] * 30], params)
    assert [found[name] for name in "acd"] == [result.outputs[0].token_ids for result in expected]
    assert 0 < len(found["b"]) < 12


@pytest.mark.parametrize(("name", "few_bytes"), [("bloom", "400KiB"), ("gpt-oss", "260KiB")])
def test_preempted_requests(name: str, few_bytes: str, saved: Saved) -> None:
    """The cache is too small for all requests; the tokens equal those of a large cache."""
    folder, _, _ = saved(name)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    found = []
    for memory, few in (("4MiB", False), (few_bytes, True)):
        llm = engine(folder, block_size=8, kv_memory=memory, max_model_len=160)
        found.append([r.outputs[0].token_ids for r in llm.generate(PROMPTS, params)])
        assert (llm.stats.preemptions > 0) == few
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["mpt", "mamba"])
def test_nothing_is_kept_of_requests_that_are_over(name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some requests end by length, one by a stop token; the next step frees their rows."""
    folder, _, _ = saved(name)
    made: list[Rows] = []
    real = OwnCaches.__init__

    def init(self: OwnCaches, found: Any) -> None:
        real(self, found)
        made.append(self.rows)

    monkeypatch.setattr(OwnCaches, "__init__", init)
    llm = engine(folder)
    llm.generate(PROMPTS, [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (2, 3, 4, 5, 6)])
    llm.generate(PROMPTS[:1], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    [rows] = made
    assert len(rows.slots) <= 1
    rows.check_integrity()


@pytest.mark.parametrize("name", ["bloom", "jamba", "rwkv"])
def test_bfloat16_is_as_near_as_theirs(name: str, saved: Saved) -> None:
    """The error must not exceed Transformers' own in bfloat16, with a margin for other orders of sums."""
    import transformers

    folder, _, expected = saved(name)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    theirs = of_transformers(load(folder, dtype=torch.bfloat16).eval(), PROMPTS)
    allowed = 2 * largest_difference(theirs, expected)
    assert largest_difference(computed(folder, dtype="bfloat16"), expected) < allowed
    assert largest_difference(computed(folder, dtype="bfloat16"), theirs) < allowed


def test_a_row_that_another_takes_the_place_of_would_show(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, expected = saved("bloom")
    real = Rows.begin

    def swapped(self: Rows, slots: Any) -> Any:
        for stack in (stacks := real(self, slots)):
            stack.slots.reverse()
        return stacks

    assert largest_difference(computed(folder, max_batch_tokens=110), expected) < TOLERANCE
    monkeypatch.setattr(Rows, "gather", swapped)
    assert largest_difference(computed(folder, max_batch_tokens=110), expected) > VISIBLE
