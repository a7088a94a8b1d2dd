"""Pipelines of two and three stages compute what Transformers and one rank do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from model_support.cases import Case, Saved, saved_cases
from model_support.configs import DELTA
from model_support.forward import largest_difference, of_engine
from model_support.tiny import VOCAB, make_model, save_model
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
    TOLERANCE,
    WINDOW,
    tokens,
)

from plimsoll_runtime import LLM, SamplingParams

INPUTS: Mapping[str, Any] = {
    **WINDOW,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA3N: Mapping[str, Any] = {
    **INPUTS,
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, FULL] * 3,
    "intermediate_size": [80, 72, 80, 64, 80, 80],
    "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.7, 0.3, 0.0],
    "laurel_rank": 8,
}
GEMMA4: Mapping[str, Any] = {
    **INPUTS,
    "global_head_dim": 32,
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, FULL],
}
BY_BRANCHES: Mapping[str, Case] = {
    "gemma3n": Case("Gemma3nTextConfig", {**GEMMA3N, "num_kv_shared_layers": 1}),
    "gemma4": Case("Gemma4TextConfig", {**GEMMA4, "num_kv_shared_layers": 1}),
    "gemma4-all-caches": Case("Gemma4TextConfig", {**GEMMA4, "num_kv_shared_layers": 0}),
}
"""Models whose first stage computes inputs of all layers. Tensor parallelism may refuse them."""
RECURRENT: Mapping[str, Case] = {
    "mamba2": Case("Mamba2Config", {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 10}),
    "lfm2": Case("Lfm2Config", {"num_hidden_layers": 6, "layer_types": ["conv", "full_attention"] * 3}),
    "qwen3.5": Case(
        "Qwen3_5TextConfig",
        {**DELTA, "num_hidden_layers": 6, "layer_types": ["linear_attention", "full_attention"] * 3},
    ),
}
"""Tensor parallelism refuses recurrent layers."""
PIPELINES: Mapping[str, Case] = {**CASES, **BY_BRANCHES, **RECURRENT}
LAYOUTS = [(1, 2), (1, 3), (2, 2)]
"""Ranks of a stage, and stages."""
BACKENDS = ["gloo", "local"]


def runs() -> Iterator[tuple[str, int, int, str]]:
    """Yield two runs of each model, with different layouts and backends. Each pair of both has several models."""
    for number, name in enumerate(PIPELINES):
        layouts = LAYOUTS if name in CASES else LAYOUTS[:2]
        for run in (number, number + 1):
            yield (name, *layouts[run % len(layouts)], BACKENDS[(run + number // 2) % 2])


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_cases(tmp_path_factory, PIPELINES, PROMPTS)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("name", "tensor", "stages", "backend"), list(runs()))
def test_logits_equal_transformers(name: str, tensor: int, stages: int, backend: str, saved: Saved) -> None:
    """With gloo, torch computes; with local, the CPU kernels do."""
    folder, expected = saved(name)
    options = {"tensor_parallel": tensor, "pipeline_parallel": stages, "group_backend": backend}
    actual = of_engine(str(folder), PROMPTS, max_batch_tokens=24, check_collectives=True, **options, **ON_A_CPU)
    assert largest_difference(actual, expected) < TOLERANCE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Gemma 3, whose windows make two cache groups, with three key heads."""
    folder = tmp_path_factory.mktemp("gemma3")
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "query_pre_attn_scalar": 16}
    kinds = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
    words = {"vocab_size": 256, "tie_word_embeddings": False}  # else greedy texts repeat a few words
    save_model(make_model("Gemma3TextConfig", {**WINDOW, **heads, **kinds, **words}), folder)
    return folder


def loaded(model: Path, **options: Any) -> LLM:
    return LLM(str(model), **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with loaded(model) as llm:
        yield llm


@pytest.fixture(scope="module")
def pipeline(model: Path) -> Iterator[LLM]:
    """Return two stages that compute prompts in chunks, while `alone` computes them whole."""
    with loaded(model, pipeline_parallel=2, max_batch_tokens=CHUNKS) as llm:
        yield llm


def check(alone: LLM, other: LLM) -> None:
    """Compare greedy and seeded texts, all at once and one by one, and all that is reported."""
    for params in (GREEDY, SEEDED):
        expected = tokens(alone.generate(TEXTS, params))
        assert tokens(other.generate(TEXTS, params)) == expected
    greedy = tokens(alone.generate(TEXTS, GREEDY))
    assert [tokens(other.generate([text], GREEDY))[0] for text in TEXTS[-3:]] == greedy[-3:]
    other.reset_prefix_cache()
    for one, theirs in zip(alone.generate(TEXTS, REPORTING), other.generate(TEXTS, REPORTING), strict=True):
        assert tokens([one]) == tokens([theirs])
        for ours, found in (
            (one.prompt_logprobs, theirs.prompt_logprobs),
            (one.outputs[0].logprobs, theirs.outputs[0].logprobs),
        ):
            assert ours is not None
            assert found is not None
            assert [entry.token_id for entry in ours] == [entry.token_id for entry in found]
            assert [entry.logprob for entry in ours] == pytest.approx([entry.logprob for entry in found], abs=1e-4)


def test_texts_and_reports_are_those_of_one_rank(alone: LLM, pipeline: LLM) -> None:
    check(alone, pipeline)


def test_prefixes_are_found_in_the_cache(alone: LLM, pipeline: LLM) -> None:
    text = TEXTS[-1]
    for llm in (alone, pipeline):
        llm.reset_prefix_cache()
    for suffix in ([], [5, 6, 7], [8]):
        [one], [other] = (llm.generate([[*text, *suffix]], GREEDY) for llm in (alone, pipeline))
        assert tokens([one]) == tokens([other])
        assert one.cached_tokens == other.cached_tokens
        assert bool(suffix) == (other.cached_tokens > 0)


def test_prompts_that_share_a_prefix_at_once(alone: LLM, pipeline: LLM) -> None:
    """Blocks of a chunk are shared while the step that computes it is under way."""
    texts = [[*TEXTS[-1], *[number] * (number % 4)] for number in range(1, 12)]
    for llm in (alone, pipeline):
        llm.reset_prefix_cache()
    assert tokens(pipeline.generate(texts, GREEDY)) == tokens(alone.generate(texts, GREEDY))


def test_preempted_sequences_have_the_same_texts(model: Path, alone: LLM) -> None:
    greedy, seeded = (tokens(alone.generate(TEXTS, params)) for params in (GREEDY, SEEDED))
    with loaded(model, pipeline_parallel=2, **{**FEW_BLOCKS, "kv_memory": "192KiB"}, max_batch_tokens=CHUNKS) as llm:
        assert tokens(llm.generate(TEXTS, GREEDY)) == greedy
        before = llm.stats.preemptions
        assert before > 0
        assert tokens(llm.generate(TEXTS, SEEDED)) == seeded
        assert llm.stats.preemptions > before


def test_steps_of_all_stages_are_under_way(pipeline: LLM) -> None:
    """Eight decodes in two steps: more steps than one rank needs, and fewer than one by one."""
    before = pipeline.stats.steps
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    pipeline.generate([[number] * 3 for number in range(1, 9)], params)
    assert 2 * 39 <= pipeline.stats.steps - before <= 2 * 39 + 16


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_parallel": 3},
        {"pipeline_parallel": 4, "max_batch_tokens": CHUNKS},
        {"tensor_parallel": 2, "max_batch_tokens": CHUNKS},
        {"tensor_parallel": 3, **FEW_BLOCKS},
        {"tensor_parallel": 2, "pipeline_parallel": 3, "group_backend": "gloo"},
        {"group_backend": "gloo", "max_batch_tokens": CHUNKS},
        {"prefix_caching": False},
        {"block_size": 32, "max_sequences": 3},
        {"max_sequences": 1},
        {"max_batch_tokens": CHUNKS},
        {**FEW_BLOCKS},
        {"attention_backend": "torch"},
        {"engine": "child", "max_batch_tokens": CHUNKS},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_texts_do_not_depend_on_options(model: Path, alone: LLM, options: Mapping[str, Any]) -> None:
    with LLM(str(model), **{**OPTIONS, "pipeline_parallel": 2, "check_collectives": True, **options}) as llm:
        check(alone, llm)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "local"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", BY_BRANCHES)
def test_models_with_inputs_of_each_layer(name: str, stages: int, backend: str, tmp_path: Path) -> None:
    case = BY_BRANCHES[name]
    words = {"vocab_size": 256, "vocab_size_per_layer_input": 256, "tie_word_embeddings": False}
    save_model(make_model(case.config, {**case.values, **words}), tmp_path)
    with loaded(tmp_path) as alone, loaded(tmp_path, pipeline_parallel=stages, group_backend=backend) as llm:
        check(alone, llm)
