"""Further features of chats and completions: ranking, bad words, token ids, ..."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
BOS, EOS = 256, 257


async def complete(running: Any, **fields: Any) -> Any:
    return await running.openai().completions.create(model="fake", prompt=fields.pop("prompt", "Hi"), **fields)


async def chat(running: Any, **fields: Any) -> Any:
    return await running.openai().chat.completions.create(model="fake", messages=HELLO, **fields)


async def test_the_best_of_several_are_told_the_best_first(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"z", b"a", b"m", b"b", b"y", b"x"]  # a smaller byte is likelier

    def tokens(request: AddRequest) -> list[int]:
        return [*answers[int(request.request_id.rpartition("-")[2])], EOS]

    monkeypatch.setattr(running.engine, "_tokens", tokens)
    told = await complete(running, prompt=["p", "q"], n=2, best_of=3)
    assert [choice.text for choice in told.choices] == ["a", "m", "b", "x"]
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    assert told.choices[0].logprobs is None
    assert told.usage.completion_tokens == 6 * 2
    assert len(running.engine.asked) == 6
    scored = await complete(running, prompt=["p", "q"], best_of=3, logprobs=1)
    assert [choice.text for choice in scored.choices] == ["a", "b"]
    assert scored.choices[0].logprobs.token_logprobs == [-0.97, -2.57]


async def test_as_many_as_are_told_are_not_ranked(running: Any) -> None:
    await complete(running, n=2, best_of=2)
    assert [request.context.params.logprobs for request in running.engine.asked] == [None, None]


async def test_bad_words_keep_an_answer_without_them(running: Any) -> None:
    for ask in (complete, chat):
        running.engine.reset()
        await ask(running, extra_body={"bad_words": ["no", "never"]})
        assert running.engine.asked[0].context.params.constraint == Constraint.without(["no", "never"])


async def test_token_ids_of_a_chat(running: Any) -> None:
    whole = await chat(running, n=2, extra_body={"return_token_ids": True})
    prompt = running.engine.asked[0].prompt_token_ids
    assert whole.prompt_token_ids == list(prompt)
    assert [choice.token_ids for choice in whole.choices] == [[*b"Hello!", EOS]] * 2
    chunks = [c async for c in await chat(running, stream=True, extra_body={"return_token_ids": True})]
    assert chunks[0].prompt_token_ids == list(prompt)
    ids = [token for chunk in chunks for choice in chunk.choices for token in getattr(choice, "token_ids", None) or ()]
    assert ids == [*b"Hello!", EOS]
    assert sum(getattr(chunk, "prompt_token_ids", None) is not None for chunk in chunks) == 1
    assert not hasattr((await chat(running)).choices[0], "token_ids")


async def test_token_ids_of_completions(running: Any) -> None:
    whole = await complete(running, prompt=["a", [5]], extra_body={"return_token_ids": True})
    assert [choice.prompt_token_ids for choice in whole.choices] == [[BOS, 97], [5]]
    assert [choice.token_ids for choice in whole.choices] == [[*b"Hello!", EOS]] * 2
    scored = await complete(running, max_tokens=0, echo=True, extra_body={"return_token_ids": True})
    assert (scored.choices[0].prompt_token_ids, scored.choices[0].token_ids) == ([BOS, *b"Hi"], [])
    running.engine.answer = "ö".encode()
    parts = [c async for c in await complete(running, stream=True, extra_body={"return_token_ids": True})]
    assert [choice.token_ids for part in parts for choice in part.choices] == [[0xC3], [0xB6], [EOS]]
    assert parts[0].choices[0].prompt_token_ids == [BOS, *b"Hi"]
    assert not hasattr(parts[1].choices[0], "prompt_token_ids")


async def test_prompts_are_cut_to_their_end(running: Any) -> None:
    for prompt, most, kept in (
        ("Hello", 2, [*b"lo"]),
        ("Hello", 99, [BOS, *b"Hello"]),
        ([1, 2, 3], 2, [2, 3]),
        ("x" * 100_000 + "end", 3, [*b"end"]),
    ):
        running.engine.reset()
        answer = await complete(running, prompt=prompt, echo=True, extra_body={"truncate_prompt_tokens": most})
        assert list(running.engine.asked[0].prompt_token_ids) == kept
        assert answer.usage.prompt_tokens == len(kept)
    assert answer.choices[0].text == "endHello!"
    running.engine.reset()
    await complete(running, prompt="x" * 100_000, max_tokens=96, extra_body={"truncate_prompt_tokens": -1})
    assert len(running.engine.asked[0].prompt_token_ids) == 4000
    running.engine.reset()
    whole = await chat(running)
    cut = await chat(running, extra_body={"truncate_prompt_tokens": 3})
    assert list(running.engine.asked[1].prompt_token_ids) == list(running.engine.asked[0].prompt_token_ids)[-3:]
    assert (whole.usage.prompt_tokens, cut.usage.prompt_tokens) == (5, 3)


async def test_hints_change_nothing(running: Any) -> None:
    await chat(running)
    await chat(
        running,
        prediction={"type": "content", "content": "Hello!"},
        store=True,
        metadata={"a": "b"},
        service_tier="default",
        safety_identifier="s",
        prompt_cache_key="k",
        user="u",
        verbosity="medium",
    )
    before, after = running.engine.asked
    assert (before.prompt_token_ids, before.context.params, before.context.cache_salt) == (
        after.prompt_token_ids,
        after.context.params,
        after.context.cache_salt,
    )


VERBOSE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HELLO, "verbosity": "low"}, "verbosity"),
    ("/v1/responses", {"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity"),
]


@pytest.mark.parametrize(("path", "body", "field"), VERBOSE)
async def test_verbosity_is_ignored_if_the_template_does_not_use_it(
    running: Any, tokenizer: Tokenizer, path: str, body: dict[str, Any], field: str
) -> None:
    """`X-Plimsoll-Ignored` names the field; with strict parameters the request is refused."""
    asked = {"model": "fake"} | body
    async with running.http() as http:
        answer = await http.post(path, json=asked)
    assert (answer.status_code, answer.headers["x-plimsoll-ignored"]) == (200, field)
    async with running_server(tokenizer, strict_parameters=True) as strict, strict.http() as http:
        answer = await http.post(path, json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], "does not use it" in error["message"]) == (400, field, True)


async def test_verbosity_is_the_templates(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = running.server.state.models.model
    monkeypatch.setattr(model.tokenizer, "chat_template", ChatTemplate("{{ verbosity }}|{{ messages[0].content }}"))
    await chat(running, verbosity="low")
    assert bytes(running.engine.asked[-1].prompt_token_ids) == b"low|Hi"
