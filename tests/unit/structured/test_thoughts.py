"""Reasoning of a random model: a budget ends it, and outputs after it follow their constraint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import msgspec
import pytest
from structured_support.models import spelling_model

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers
from plimsoll_runtime.text.tokenizer import Tokenizer

END = "</think>"
SHAPE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
BUDGET = 6


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = spelling_model(tmp_path_factory.mktemp("thinking"))
    loaded = LLM(str(folder), dtype="float32", max_model_len=256, kv_memory="48MiB", threads=1, check_integrity_every=9)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> Tokenizer:
    return llm._tokenizer


def thought(tokenizer: Tokenizer, **options: Any) -> ReasoningMarkers:
    closing = tuple((token,) for token in tokenizer.encode(f"\n{END}", add_special_tokens=False))
    gap = tuple(tokenizer.encode("\n\n", add_special_tokens=False))
    given: dict[str, Any] = {"open": True, "budget": BUDGET, "closing": closing, "gap": gap}
    return ReasoningMarkers(begin=b"<think>", end=END.encode(), **(given | options))


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 60, "ignore_eos": True, **options})


def _place(tokens: Sequence[int], part: list[int]) -> int:
    return next(i for i in range(len(tokens)) if list(tokens[i : i + len(part)]) == part)


PROMPTS = [[5 + i, 7, 9] for i in range(8)]


def test_a_budget_changes_nothing_but_the_end(llm: LLM, tokenizer: Tokenizer) -> None:
    free = [params(seed=i, logprobs=2) for i in range(len(PROMPTS))]
    bounded = [params(seed=i, logprobs=2, thought=thought(tokenizer)) for i in range(len(PROMPTS))]
    closing = tokenizer.encode(f"\n{END}", add_special_tokens=False)
    for before, after in zip(llm.generate(PROMPTS, free), llm.generate(PROMPTS, bounded), strict=True):
        [alone], [ended] = before.outputs, after.outputs
        at = _place(ended.token_ids, closing)
        assert BUDGET <= at <= BUDGET + 3
        assert ended.token_ids[:at] == alone.token_ids[:at]
        assert ended.logprobs is not None
        assert alone.logprobs is not None
        assert ended.logprobs[: at + 1] != []
        assert [entry.top for entry in ended.logprobs[: at + 1]] == [entry.top for entry in alone.logprobs[: at + 1]]
        assert ended.text.count(END) == 1


def test_an_answer_behind_a_thought_is_of_its_form(llm: LLM, tokenizer: Tokenizer) -> None:
    wanted = [
        params(
            seed=i,
            max_tokens=150,
            ignore_eos=False,
            constraint=Constraint.json(SHAPE),
            thought=thought(tokenizer, budget=i),
        )
        for i in range(len(PROMPTS))
    ]
    closing = tokenizer.encode(f"\n{END}", add_special_tokens=False)
    for budget, generation in enumerate(llm.generate(PROMPTS, wanted)):
        [answer] = generation.outputs
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.text.partition(f"\n{END}\n\n")[2]), SHAPE)
        assert budget <= _place(answer.token_ids, closing) <= budget + 3
    alone = llm.generate(PROMPTS[3], wanted[3])[0].outputs[0]
    again = llm.generate(PROMPTS, wanted)[3].outputs[0]
    assert alone.token_ids == again.token_ids


def test_a_constrained_answer_may_begin_with_a_thought(llm: LLM, tokenizer: Tokenizer) -> None:
    """Uses a model that opens reasoning with a special token, here one that every output starts with."""
    greedy = [g.outputs[0].token_ids[0] for g in llm.generate(PROMPTS, params(temperature=0.0, max_tokens=1))]
    prompt, first = next(
        (prompt, token)
        for prompt, token in zip(PROMPTS, greedy, strict=True)
        if not tokenizer.token_bytes(token)[:1].isspace()
    )
    made = thought(tokenizer, open=False, budget=2, opening=first)
    begins = msgspec.structs.replace(made, begin=tokenizer.token_bytes(first))
    asked = params(temperature=0.0, ignore_eos=False, constraint=Constraint.choice(["yes", "no"]), thought=begins)
    [generation] = llm.generate([prompt], [asked])
    [answer] = generation.outputs
    assert answer.token_ids[0] == first
    assert answer.text.partition(f"{END}\n\n")[2] in ("yes", "no")


def test_an_answer_without_a_thought_is_of_its_form_from_the_start(llm: LLM, tokenizer: Tokenizer) -> None:
    asked = params(
        ignore_eos=False,
        constraint=Constraint.choice(["yes", "no"]),
        thought=thought(tokenizer, open=False, budget=None),
    )
    for generation in llm.generate(PROMPTS, asked):
        assert generation.outputs[0].text in ("yes", "no")


def test_a_preempted_thought_goes_on_as_it_would_have(llm: LLM, tokenizer: Tokenizer, tmp_path: Any) -> None:
    wanted = [
        params(seed=i, max_tokens=45, ignore_eos=False, constraint=Constraint.json(SHAPE), thought=thought(tokenizer))
        for i in range(len(PROMPTS))
    ]
    expected = [g.outputs[0].token_ids for g in llm.generate(PROMPTS, wanted)]
    folder = spelling_model(tmp_path)
    small = LLM(str(folder), dtype="float32", max_model_len=64, kv_memory="64KiB", threads=1, check_integrity_every=9)
    assert [g.outputs[0].token_ids for g in small.generate(PROMPTS, wanted)] == expected
    assert small.stats.preemptions > 0
    small.close()
