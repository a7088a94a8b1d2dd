"""Outputs of a random model at temperature 1: complete ones are valid, truncated ones are the start of a valid one."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from kernel_support.late import Copies
from structured_support.models import spelling_model
from structured_support.schemas import cases

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.structured.vocabulary import vocabulary_of

CASES = cases()
RFC_3339 = {
    "date": re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    "time": re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"),
}
"""Stricter than Python's parsers, which reject year 0, a lower-case z and leap seconds."""
SHAPE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(spelling_model(tmp_path_factory.mktemp("spelling")))


def load(folder: str, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"max_model_len": 512, "kv_memory": "48MiB", "max_sequences": 48, "threads": 1}
    return LLM(folder, dtype="float32", check_integrity_every=50, **(defaults | options))


@pytest.fixture(scope="module")
def llm(folder: str) -> LLM:
    return load(folder)


def checker() -> jsonschema.FormatChecker:
    formats = jsonschema.FormatChecker()
    for name, pattern in RFC_3339.items():
        formats.checks(name)(lambda value, p=pattern: not isinstance(value, str) or bool(p.fullmatch(value)))
    return formats


def params(constraint: Constraint | None, **options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 400, "constraint": constraint, **options})


def test_every_schema_in_one_batch(llm: LLM, folder: str) -> None:
    wanted = [params(Constraint.json(case.schema), seed=i) for i, case in enumerate(CASES)]
    found = llm.generate([[5 + i % 50, 7, 9] for i in range(len(CASES))], wanted)
    compiled, formats, ended = Grammars(), checker(), 0
    compiled.use(vocabulary_of(llm._tokenizer, llm.info.vocab_size, llm.info.eos_token_ids))
    for case, generation in zip(CASES, found, strict=True):
        [answer] = generation.outputs
        assert answer.error is None, case.name
        if answer.finish_reason == "stop":
            ended += 1
            document = json.loads(answer.text)
            jsonschema.Draft202012Validator(case.schema, format_checker=formats).validate(document)
        else:
            matcher = compiled.matcher(Constraint.json(case.schema))
            matcher.take_all(answer.token_ids)
            assert matcher.error is None, case.name
    assert ended >= 0.8 * len(CASES)


KINDS = {
    "regex": (Constraint.regex(r"[A-Z]{2}-[0-9]{1,4}( [a-z]{1,5}){1,2}!"), r"[A-Z]{2}-[0-9]{1,4}( [a-z]{1,5}){1,2}!"),
    "choice": (Constraint.choice(["yes", "no", "perhaps: 50%", "größer"]), "yes|no|perhaps: 50%|größer"),
    "lark": (Constraint.grammar('start: "x" NUM ("," NUM)~0..2\nNUM: /[0-9]{1,3}/'), r"x\d{1,3}(,\d{1,3}){0,2}"),
    "ebnf": (Constraint.grammar('root ::= "hi" [a-c]{1,3} ("." | "!")'), r"hi[a-c]{1,3}[.!]"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_constraint(llm: LLM, kind: str) -> None:
    constraint, pattern = KINDS[kind]
    for generation in llm.generate([[5, 6]] * 20, [params(constraint, seed=i) for i in range(20)]):
        [answer] = generation.outputs
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
        assert re.fullmatch(pattern, answer.text), answer.text


def test_what_must_not_stand_in_an_answer(llm: LLM) -> None:
    words = ["e", "st", '"', "\\"]

    def texts(constraint: Constraint | None) -> str:
        wanted = [params(constraint, seed=i, max_tokens=60) for i in range(20)]
        return "|".join(generation.outputs[0].text for generation in llm.generate([[5, 6]] * 20, wanted))

    assert all(word in texts(None) for word in words)
    without = texts(Constraint.without(words))
    assert len(without) > 500
    assert not [word for word in words if word in without]


def test_nobody_else_in_the_batch_notices(llm: LLM) -> None:
    prompts = [[5 + i, 7, 9] for i in range(8)]
    free = [params(None, seed=i, max_tokens=30, ignore_eos=True) for i in range(8)]
    alone = [g.outputs[0].token_ids for g in llm.generate(prompts, free)]
    mixed = [params(Constraint.json(SHAPE), seed=i) for i in range(8)]
    both = llm.generate(
        [p for p in prompts for _ in range(2)], [p for pair in zip(free, mixed, strict=True) for p in pair]
    )
    assert [g.outputs[0].token_ids for g in both[::2]] == alone
    for generation in both[1::2]:
        jsonschema.validate(json.loads(generation.outputs[0].text), SHAPE)


WAYS: dict[str, dict[str, Any]] = {
    "little memory": {"kv_memory": "96KiB", "max_model_len": 64},
    "small chunks": {"max_batch_tokens": 5},
    "forced tokens at once": {"overlap": False},
    "forced tokens at once, in little memory": {"overlap": False, "kv_memory": "96KiB", "max_model_len": 64},
    "forced tokens at once, in small chunks": {"overlap": False, "max_batch_tokens": 5},
    "two at a time": {"max_sequences": 2},
    "a process of its own": {"engine": "child"},
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_however_it_is_computed_the_answer_is_the_same(llm: LLM, folder: str, way: str) -> None:
    prompts = [[5 + i, 7, 9, 11, 13, 15, 17, 19] for i in range(10)]
    wanted = [
        params(Constraint.json(SHAPE), seed=i, max_tokens=50, presence_penalty=0.5 * (i % 2), top_k=20 * (i % 3))
        for i in range(10)
    ]
    expected = [g.outputs[0].token_ids for g in llm.generate(prompts, wanted)]
    other = load(folder, **WAYS[way])
    assert [g.outputs[0].token_ids for g in other.generate(prompts, wanted)] == expected
    if "little memory" in way:
        assert other.stats.preemptions > 0
    assert (other.stats.forced_tokens > 0) == ("forced" in way)
    other.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_device_that_computes_behind_the_host_s_back_keeps_to_it(
    llm: LLM, folder: str, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """Masks are computed from tokens that the host has seen; the batch also has sequences without constraint."""
    prompts = [[5 + i, 7, 9, 11] for i in range(6)]
    wanted = [params(Constraint.json(SHAPE) if i % 3 else None, seed=i, max_tokens=50) for i in range(6)]
    expected = [g.outputs[0].token_ids for g in llm.generate(prompts, wanted)]
    copies = Copies()
    copies.install(monkeypatch)
    other = load(folder, overlap=overlap, max_sequences=4)
    assert [g.outputs[0].token_ids for g in other.generate(prompts, wanted)] == expected
    assert (other.stats.forced_tokens > 0) == (not overlap)
    assert "wait" in copies.log


def test_who_wants_log_probabilities_gets_each_token_by_a_step_of_its_own(folder: str) -> None:
    llm = load(folder, overlap=False)
    wanted = [params(Constraint.json(SHAPE), seed=i, logprobs=0 if i % 2 else None) for i in range(4)]
    for index, generation in enumerate(llm.generate([[5, 6]] * 4, wanted)):
        [answer] = generation.outputs
        told = len(answer.logprobs or ())
        assert told == (len(answer.token_ids) if index % 2 else 0)
    assert llm.stats.forced_tokens > 0
    llm.close()


def test_log_probabilities_of_a_prompt_take_no_forced_token_away(llm: LLM, folder: str) -> None:
    """The step that samples the first token, which forces the second, also returns the prompt's log probabilities."""
    wanted = [params(Constraint.regex("ZQ[a-z]{3}QZ"), seed=i, prompt_logprobs=0) for i in range(4)]
    prompts = [[5 + i, 6, 7] for i in range(4)]
    expected = [g.outputs[0].token_ids for g in llm.generate(prompts, wanted)]
    at_once = load(folder, overlap=False)
    assert [g.outputs[0].token_ids for g in at_once.generate(prompts, wanted)] == expected
    assert at_once.stats.forced_tokens > 0
    at_once.close()


def test_log_probabilities_are_the_model_s_own(llm: LLM) -> None:
    constraint = Constraint.choice(["yes", "no"])
    [generation] = llm.generate([[5, 6]], params(constraint, seed=1, logprobs=3))
    answer = generation.outputs[0]
    assert answer.logprobs is not None
    first = answer.logprobs[0]
    [free] = llm.generate([[5, 6]], params(None, temperature=0.0, max_tokens=1, logprobs=3))
    assert free.outputs[0].logprobs is not None
    assert first.top == free.outputs[0].logprobs[0].top
    assert first.rank > 1
    assert first.token_id not in [token for token, _ in first.top]


def test_a_stop_string_still_stops(llm: LLM) -> None:
    [generation] = llm.generate([[5, 6]], params(Constraint.regex("[a-z]{8}"), seed=1, stop=tuple("abcdefghijklm")))
    answer = generation.outputs[0]
    assert answer.finish_reason == "stop"
    assert answer.stop_reason in tuple("abcdefghijklm")


def test_what_cannot_be_kept_to_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(UsageError, match=r"the constraint .*uniqueItems"):
        llm.generate([[5]], params(Constraint.json({"type": "array", "uniqueItems": True})))
    for field, value in (("min_tokens", 3), ("ignore_eos", True)):
        with pytest.raises(ValueError, match=f"{field}: cannot be combined with a constraint"):
            params(Constraint.choice(["a"]), **{field: value})


def test_a_grammar_that_takes_too_much_work_ends_its_own_answer(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits allow no work after the first token."""
    from llguidance import LLParserLimits

    from plimsoll_runtime.structured import matcher

    monkeypatch.setattr(matcher, "limits", lambda: LLParserLimits(step_lexer_fuel=1, step_max_items=1))
    hard = Constraint.json({"type": "object", "properties": {"p": {"type": "string", "pattern": "([a-z].{3}){2,9}x"}}})
    fine = params(None, max_tokens=5, seed=3, ignore_eos=True)
    broken, other = llm.generate([[5, 6], [7, 8]], [params(hard, seed=1), fine])
    assert broken.outputs[0].finish_reason == "error"
    assert "no token can continue the output in its grammar" in str(broken.outputs[0].error)
    assert (other.outputs[0].finish_reason, len(other.outputs[0].token_ids)) == ("length", 5)
