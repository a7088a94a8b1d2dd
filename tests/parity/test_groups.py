"""Parallel groups of two to four ranks compute what Transformers and one rank do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from model_support.cases import Case, Saved, saved_cases
from model_support.forward import largest_difference, of_engine
from model_support.gguf_cases import CONVERTED, FAMILIES
from model_support.gguf_files import write_gguf
from model_support.tiny import make_model, prompts, save_model
from parallel_support.parity import (
    CASES,
    CHUNKS,
    FEW_BLOCKS,
    GPT,
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


WORDS = 1700
"""A vocabulary that is divided among up to four ranks."""
CUT: Mapping[str, Case] = {
    "tied": Case("LlamaConfig", {"vocab_size": WORDS, "tie_word_embeddings": True}),
    "untied-bias": Case("PhiConfig", {"vocab_size": WORDS}),
    "softcap": Case("Gemma2Config", {**WINDOW, "vocab_size": WORDS, "final_logit_softcapping": 5.0}),
    "scale": Case("CohereConfig", {"vocab_size": WORDS, "logit_scale": 0.5}),
    "positions": Case("GPT2Config", {**GPT, "vocab_size": WORDS}),
}
SPREAD = prompts((1, 17, 40), vocab=WORDS)


@pytest.fixture(scope="session")
def saved_cut(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, CUT, SPREAD)


@pytest.mark.matrix(4)
@pytest.mark.parametrize(("ranks", "backend"), [(2, "gloo"), (2, "local"), (3, "local"), (4, "local")])
@pytest.mark.parametrize("name", CUT)
def test_divided_logits_equal_transformers(name: str, ranks: int, backend: str, saved_cut: Saved) -> None:
    folder, expected = saved_cut(name)
    options: Mapping[str, Any] = {**ON_A_CPU, "group_backend": backend, "check_collectives": True}
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=20, prompt_logprobs=20)
    with LLM(
        str(folder), dtype="float32", threads=1, kv_memory="4MiB", tensor_parallel=ranks, max_batch_tokens=24, **options
    ) as llm:
        found = llm.generate([list(prompt) for prompt in SPREAD], params)
    for each, rows in zip(found, expected, strict=True):
        entries = [*(each.prompt_logprobs or ()), *(each.outputs[0].logprobs or ())]
        for entry, row in zip(entries, rows, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=TOLERANCE)
            largest = row.topk(20)
            assert [value for _, value in entry.top] == pytest.approx(largest.values.tolist(), abs=TOLERANCE)
            assert all(abs(float(row[token]) - value) < TOLERANCE for token, value in entry.top)
        assert entries[-1].token_id == int(rows[-1].argmax())


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


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["gemma3", "llama"])
def test_a_divided_vocabulary_of_blocks_has_the_same_numbers(name: str, kind: Kind, tmp_path: Path) -> None:
    """The output layer of this Gemma is its embedding."""
    case, path = QUANTISED[name], tmp_path / "model.gguf"
    words = {**case.values, **SIZES, "vocab_size": 1100}
    write_gguf(make_model(case.config, words), path, kind, spelt=True, **case.extra)
    one, group = reported(path, 1), reported(path, 2)
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


WISHES: Sequence[Mapping[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.2},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 3.0, "top_k": 900},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "top_p": 0.999, "repetition_penalty": 1.2, "logprobs": 2, "prompt_logprobs": 1},
]
MIXED = [
    SamplingParams(seed=number, max_tokens=TOKENS, ignore_eos=True, **wishes) for number, wishes in enumerate(WISHES)
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_backend": "gloo"},
        {"pipeline_parallel": 2},
        {"pipeline_parallel": 2, "group_backend": "gloo"},
        {**FEW_BLOCKS, "kv_memory": "192KiB", "max_batch_tokens": CHUNKS},
        {"overlap": True},
        {"engine": "child"},
    ],
    ids=["local", "gloo", "stages", "stages-gloo", "preempted", "overlapping", "child"],
)
def test_ranks_with_parts_of_the_vocabulary_choose_the_tokens_of_one(
    options: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("words")
    words = {"vocab_size": WORDS, "tie_word_embeddings": False}
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    save_model(make_model("Gemma3TextConfig", {**WINDOW, **kinds, **words}), folder)
    texts = prompts((1, 15, 16, 17, 33, 70, 120), seed=3, vocab=WORDS)
    with loaded(folder, 1) as alone, loaded(folder, 2, **options) as group:
        expected, found = alone.generate(texts, MIXED), group.generate(texts, MIXED)
        assert tokens(found) == tokens(expected)
        assert all(len(set(each)) > 10 for each in tokens(expected)[1:])
        for ours, theirs in zip(found, expected, strict=True):
            assert [entry.token_id for entry in ours.prompt_logprobs or ()] == [
                entry.token_id for entry in theirs.prompt_logprobs or ()
            ]
        if "kv_memory" in options:
            assert group.stats.preemptions > 0


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
