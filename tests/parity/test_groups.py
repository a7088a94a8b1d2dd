"""Parallel groups of two to four ranks compute what Transformers and one rank do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from model_support.cases import Saved, saved_cases
from model_support.forward import largest_difference, of_engine
from model_support.gguf_cases import CONVERTED, FAMILIES
from model_support.gguf_files import write_gguf
from model_support.tiny import make_model, save_model
from parallel_support.parity import (
    CASES,
    CHUNKS,
    FEW_BLOCKS,
    GREEDY,
    ON_A_CPU,
    OPTIONS,
    PROMPTS,
    REPORTING,
    SEEDED,
    TEXTS,
    TOKENS,
    TOLERANCE,
    WINDOW,
    tokens,
)

from plimsoll_runtime import LLM, SamplingParams


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CASES, PROMPTS)


@pytest.mark.matrix(4)
@pytest.mark.parametrize("backend", ["gloo", "local"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, ranks: int, backend: str, saved: Saved) -> None:
    """With gloo, torch computes; with local, the CPU kernels do."""
    folder, expected = saved(name)
    options = {"tensor_parallel": ranks, "group_backend": backend, "check_collectives": True}
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=24, **options, **ON_A_CPU)
    assert largest_difference(actual, expected) < TOLERANCE


SIZES: Mapping[str, Any] = {"vocab_size": 300, "hidden_size": 256, "intermediate_size": 256}
"""A GGUF file's vocabulary has at least all bytes; rows have at least one block of the K types."""
QUANTISED = {
    "llama": FAMILIES["llama"],
    "qwen2-biases": FAMILIES["qwen2"],
    "gemma3": FAMILIES["gemma3"],
    "gpt-neox": CONVERTED["gptneox"],
}


def reported(path: Path, ranks: int) -> list[list[float]]:
    """Return, for each position of the prompts, the log probabilities of the next token and of the likeliest tokens."""
    llm = LLM(
        str(path), dtype="float32", threads=1, kv_memory="4MiB", tensor_parallel=ranks, max_batch_tokens=40, **ON_A_CPU
    )
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=20, prompt_logprobs=20)
    with llm:
        found = llm.generate([list(prompt) for prompt in PROMPTS], params)
    return [
        [entry.logprob, *(value for _, value in entry.top)]
        for each in found
        for entry in (*(each.prompt_logprobs or ()), *(each.outputs[0].logprobs or ()))
    ]


@pytest.mark.matrix(1)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_that_ranks_share_have_the_same_numbers(name: str, kind: Kind, ranks: int, tmp_path: Path) -> None:
    """A third of the columns, and with Q4_K also half of them, ends within a block."""
    case, path = QUANTISED[name], tmp_path / "model.gguf"
    write_gguf(make_model(case.config, {**case.values, **SIZES}), path, kind, spelt=True, **case.extra)
    one, group = reported(path, 1), reported(path, ranks)
    assert [len(row) for row in one] == [len(row) for row in group]
    assert len(one) == sum(len(prompt) - 1 + 8 for prompt in PROMPTS)
    assert max(abs(a - b) for x, y in zip(one, group, strict=True) for a, b in zip(x, y, strict=True)) < TOLERANCE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Gemma 3, whose windows make two cache groups, with three key heads for two ranks."""
    folder = tmp_path_factory.mktemp("gemma3")
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "query_pre_attn_scalar": 16}
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    words = {"vocab_size": 256, "tie_word_embeddings": False}  # else greedy texts repeat a few words
    save_model(make_model("Gemma3TextConfig", {**WINDOW, **heads, **kinds, **words}), folder)
    return folder


def loaded(model: Path, ranks: int, **options: Any) -> LLM:
    return LLM(str(model), tensor_parallel=ranks, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with loaded(model, 1) as llm:
        yield llm


@pytest.fixture(scope="module")
def group(model: Path) -> Iterator[LLM]:
    """Return two ranks that compute prompts in chunks, while `alone` computes them whole."""
    with loaded(model, 2, max_batch_tokens=CHUNKS) as llm:
        yield llm


def test_greedy_texts_are_those_of_one_rank(alone: LLM, group: LLM) -> None:
    expected = tokens(alone.generate(TEXTS, GREEDY))
    assert [len(each) for each in expected] == [TOKENS] * len(TEXTS)
    assert all(len(set(each)) > 10 for each in expected), "a mistake would not show in texts of few words"
    assert tokens(group.generate(TEXTS, GREEDY)) == expected
    assert [tokens(group.generate([text], GREEDY))[0] for text in TEXTS] == expected


def test_seeded_samples_are_those_of_one_rank(alone: LLM, group: LLM) -> None:
    expected = tokens(alone.generate(TEXTS, SEEDED))
    assert tokens(group.generate(TEXTS, SEEDED)) == expected


def test_log_probabilities_are_those_of_one_rank(alone: LLM, group: LLM) -> None:
    group.reset_prefix_cache()
    ones, groups = (llm.generate(TEXTS, REPORTING) for llm in (alone, group))
    assert tokens(ones) == tokens(groups)
    for one, other in zip(ones, groups, strict=True):
        for ours, theirs in (
            (one.prompt_logprobs, other.prompt_logprobs),
            (one.outputs[0].logprobs, other.outputs[0].logprobs),
        ):
            assert ours is not None
            assert theirs is not None
            assert [entry.token_id for entry in ours] == [entry.token_id for entry in theirs]
            assert [entry.logprob for entry in ours] == pytest.approx([entry.logprob for entry in theirs], abs=1e-4)


def test_prefixes_are_found_in_the_cache(alone: LLM, group: LLM) -> None:
    text = TEXTS[-1]
    for llm in (alone, group):
        llm.reset_prefix_cache()
    for suffix in ([], [5, 6, 7], [8]):
        [one], [other] = (llm.generate([[*text, *suffix]], GREEDY) for llm in (alone, group))
        assert tokens([one]) == tokens([other])
        assert one.cached_tokens == other.cached_tokens
        assert bool(suffix) == (other.cached_tokens > 0)


def test_preempted_sequences_have_the_same_texts(model: Path, alone: LLM) -> None:
    greedy, seeded = (tokens(alone.generate(TEXTS, params)) for params in (GREEDY, SEEDED))
    with loaded(model, 2, **FEW_BLOCKS, max_batch_tokens=CHUNKS) as llm:
        assert tokens(llm.generate(TEXTS, GREEDY)) == greedy
        before = llm.stats.preemptions
        assert before > 0
        assert tokens(llm.generate(TEXTS, SEEDED)) == seeded
        assert llm.stats.preemptions > before


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel": 3},
        {"tensor_parallel": 4, **FEW_BLOCKS, "kv_memory": "320KiB"},
        {"prefix_caching": False},
        {"block_size": 32, "max_sequences": 3},
        {"overlap": False, "max_batch_tokens": CHUNKS},
        {"overlap": True, **FEW_BLOCKS},
        {"attention_backend": "torch"},
        {"engine": "child", "max_batch_tokens": CHUNKS},
    ],
    ids=[
        "three-ranks",
        "four-ranks",
        "no-prefix-caching",
        "blocks-of-32",
        "one-step-after-another",
        "overlapping",
        "torch",
        "child",
    ],
)
def test_texts_do_not_depend_on_options(model: Path, alone: LLM, options: Mapping[str, Any]) -> None:
    with LLM(str(model), **{**OPTIONS, "tensor_parallel": 2, **options}) as llm:
        for params in (GREEDY, SEEDED):
            assert tokens(llm.generate(TEXTS, params)) == tokens(alone.generate(TEXTS, params))
