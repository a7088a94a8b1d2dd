"""Chat completions, requested with OpenAI's own client."""

import asyncio
import json
from typing import Any

import openai
import pytest

from plimsoll_runtime.text.chat_template import ChatTemplate

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOS, USER, ASSISTANT = 256, 258, 259
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
HELLO_IDS = [BOS, USER, *b"Hi", ASSISTANT]


async def test_a_whole_answer(running: Any) -> None:
    answer = await running.openai().chat.completions.create(model="fake", messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello!")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 7, 12)
    assert usage.prompt_tokens_details.cached_tokens == 16
    asked = running.engine.asked[0]
    assert asked.prompt_token_ids == HELLO_IDS
    assert asked.context.params.stop == ("STOPCHAT",)
    assert asked.context.params.max_tokens is None


async def test_a_stream(running: Any) -> None:
    stream = await running.openai().chat.completions.create(
        model="alias", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello!"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 7 + ["stop"]
    assert {c.id for c in chunks} == {chunks[0].id}
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 7
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 16


async def test_a_stream_without_usage_ends_with_done(running: Any) -> None:
    body = {"model": "fake", "messages": HELLO, "stream": True}
    async with running.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert "usage" not in answer.text
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_every_event_has_the_usage_so_far(running: Any) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await running.openai().chat.completions.create(
        model="fake", messages=HELLO, stream=True, stream_options=options
    )
    used = [chunk.usage async for chunk in stream]
    assert all(u.prompt_tokens == 5 and u.total_tokens == 5 + u.completion_tokens for u in used)
    assert [u.completion_tokens for u in used] == [1, 1, 2, 3, 4, 5, 6, 7, 7]


async def test_the_usage_so_far_comes_only_where_usage_does(running: Any) -> None:
    options: Any = {"continuous_usage_stats": True}
    stream = await running.openai().chat.completions.create(
        model="fake", messages=HELLO, stream=True, stream_options=options
    )
    assert [chunk.usage async for chunk in stream] == [None] * 8


async def test_parameters_reach_the_engine(running: Any) -> None:
    await running.openai().chat.completions.create(
        model="fake",
        messages=HELLO,
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=["a", "b"],
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"3": -100, "4": 1.5},
        user="u",
        metadata={"a": "b"},
        store=False,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [9],
            "cache_salt": "tenant",
        },
    )
    request = running.engine.asked[0]
    params = request.context.params
    assert request.context.cache_salt == "tenant"
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (9, 0.5, 0.9, 7)
    assert params.stop == ("a", "b", "STOPCHAT")
    assert (params.presence_penalty, params.frequency_penalty) == (0.1, 0.2)
    assert params.logit_bias == {3: -100.0, 4: 1.5}
    assert (params.top_k, params.min_p, params.repetition_penalty) == (5, 0.1, 1.1)
    assert (params.min_tokens, params.ignore_eos, params.stop_token_ids) == (2, True, (9,))


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
    ({"content": None, "refusal": "No."}, "No."),
    ({"refusal": "No."}, "No."),
    ({"content": "Hm.", "refusal": "No."}, "Hm.\nNo."),
    ({"content": [{"type": "text", "text": "Hm."}, {"type": "refusal", "refusal": "No."}], "refusal": ""}, "Hm.\nNo."),
    ({"content": [], "refusal": "No."}, "No."),
    ({"content": "Yes.", "refusal": None}, "Yes."),
]


async def test_an_assistant_may_have_refused(running: Any) -> None:
    async with running.http() as http:
        for said, shown in REFUSALS:
            messages = [*HELLO, {"role": "assistant", **said}, *HELLO]
            answer = await http.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
            assert (answer.status_code, "x-plimsoll-ignored" in answer.headers) == (200, False), answer.text
            prompt = bytes(token for token in running.engine.asked[-1].prompt_token_ids if token < 256).decode()
            assert prompt == f"Hi{shown}Hi", said


async def test_nobody_else_refuses(running: Any) -> None:
    async with running.http() as http:
        for said, field in (
            ({"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "No."}]}, "content[1].type"),
            ({"content": "a", "refusal": "No."}, "refusal"),
        ):
            messages = [{"role": "user", **said}]
            answer = await http.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, f"messages[0].{field}")
            assert "only messages of the assistant may have a refusal" in error["message"]


async def test_several_answers_have_their_own_seeds(running: Any) -> None:
    answer = await running.openai().chat.completions.create(model="fake", messages=HELLO, n=3, seed=2**63 - 2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 21
    assert [r.context.seed for r in running.engine.asked] == [2**63 - 2, 2**63 - 1, -(2**63)]


async def test_several_answers_in_one_stream(running: Any) -> None:
    stream = await running.openai().chat.completions.create(model="fake", messages=HELLO, n=2, stream=True)
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello!", 1: "Hello!"}


async def test_a_stop_string_never_leaks_and_ends_the_engines_work(running: Any) -> None:
    running.engine.answer = b"one STO two STOP three"
    stream = await running.openai().chat.completions.create(model="fake", messages=HELLO, stop="STOP", stream=True)
    parts = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in parts) == "one STO two "
    assert parts[-1].choices[0].finish_reason == "stop"
    assert parts[-1].choices[0].model_extra["stop_reason"] == "STOP"
    await running.engine.until(lambda: len(running.engine.aborted) == 1)


async def test_a_split_character_never_streams_as_a_replacement(running: Any) -> None:
    running.engine.answer = "a😀é東".encode()
    stream = await running.openai().chat.completions.create(model="fake", messages=HELLO, stream=True)
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert [text for text in texts if text] == ["a", "😀", "é", "東"]


async def test_logprobs(running: Any) -> None:
    running.engine.answer = b"A\xc3"
    answer = await running.openai().chat.completions.create(
        model="fake", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=2
    )
    first, second = answer.choices[0].logprobs.content
    assert (first.token, first.bytes, first.logprob) == ("A", [65], pytest.approx(-0.65))
    assert [t.token for t in first.top_logprobs] == ["A", "B"]
    assert (second.token, second.bytes) == ("bytes:\\xc3", [0xC3])
    assert answer.choices[0].message.content == "A�"
    assert answer.choices[0].finish_reason == "length"


async def test_streamed_logprobs_come_with_their_tokens(running: Any) -> None:
    running.engine.answer = "é".encode()
    stream = await running.openai().chat.completions.create(model="fake", messages=HELLO, logprobs=True, stream=True)
    tokens = [t.token async for c in stream if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert tokens == ["bytes:\\xc3", "bytes:\\xa9", "</s>"]


async def test_prompt_logprobs(running: Any) -> None:
    answer = await running.openai().chat.completions.create(
        model="fake", messages=HELLO, extra_body={"prompt_logprobs": 0}
    )
    reported = answer.model_extra["prompt_logprobs"]
    assert len(reported) == 5
    assert reported[0] is None
    assert reported[2] == {"72": {"logprob": pytest.approx(-0.72), "rank": 1, "decoded_token": "H"}}


async def test_messages_reach_the_template(running: Any) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "tool_calls": [], "refusal": None, "annotations": []},
        {"role": "user", "content": "d"},
    ]
    await running.openai().chat.completions.create(model="fake", messages=messages)
    asked = running.engine.asked[0].prompt_token_ids
    assert asked == [BOS, *b"<|system|>S", USER, *b"a\nb", ASSISTANT, *b"c", USER, *b"d", ASSISTANT]


async def test_a_message_can_be_continued(running: Any) -> None:
    messages: list[Any] = [*HELLO, {"role": "assistant", "content": "So"}]
    extra = {"continue_final_message": True}
    await running.openai().chat.completions.create(model="fake", messages=messages, extra_body=extra)
    assert running.engine.asked[0].prompt_token_ids == [BOS, USER, *b"Hi", ASSISTANT, *b"So"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 101}, "temperature", "at most 100"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"top_p": -0.1}, "top_p", "at least 0"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 1.5}, "n", "valid integer"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 10**30}, "max_tokens", "less than or equal"),
    ({"max_tokens": True}, "max_tokens", "valid integer"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differs from 'max_completion_tokens'"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "exceeds max_tokens"),
    ({"seed": 2**64}, "seed", "less than"),
    ({"stop": [1]}, "stop", "a string or a list of strings"),
    ({"stop": ""}, "stop", "none of them empty"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]", "valid integer"),
    ({"logit_bias": {"264": 1}}, "logit_bias", "264 is not in the vocabulary of 264"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "at most 100"),
    ({"stop_token_ids": [264]}, "stop_token_ids", "264 is not in the vocabulary"),
    ({"top_logprobs": 2}, "top_logprobs", "it needs 'logprobs': true"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "less than or equal to 20"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "chat template does not support tools"),
    ({"functions": [{"name": "f"}]}, "functions", "chat template does not support tools"),
    ({"modalities": ["audio"]}, "modalities[0]", "should be 'text'"),
    ({"reasoning_effort": "much"}, "reasoning_effort", "'medium'"),
    ({"thinking_budget": 3}, "thinking_budget", "--reasoning-format"),
    ({"thinking_token_budget": 3}, "thinking_token_budget", "--reasoning-format"),
    ({"thinking_budget": 3, "thinking_token_budget": 3}, "thinking_token_budget", "is also set"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed with 'stream'"),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'system'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "must be a text"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "valid string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "'image_url' is not supported; this model reads text only",
    ),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "should be an object"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "Missing"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 4097}]},
        "messages[0].content",
        "at most 4096 items",
    ),
    ({"cache_salt": "x" * 300}, "cache_salt", "at most 256"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt", "contradicts"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "is set by the server"),
]


async def test_what_cannot_be_done_is_refused_with_its_name(running: Any) -> None:
    async with running.http() as http:
        for change, param, told in REFUSED:
            body = {"model": "fake", "messages": HELLO} | change
            answer = await http.post("/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), (change, answer.text)
            assert error["param"] == param, change
            assert told in error["message"], change
    assert running.engine.asked == []


async def test_a_missing_field_is_named(running: Any) -> None:
    async with running.http() as http:
        for field in ("model", "messages"):
            body: dict[str, Any] = {"model": "fake", "messages": HELLO}
            del body[field]
            answer = await http.post("/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (
                400,
                field,
                "missing_required_parameter",
            )


async def test_harmless_values_are_taken(running: Any) -> None:
    body = {
        "model": "fake",
        "messages": HELLO,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "function_call": "none",
        "parallel_tool_calls": True,
        "temperature": None,
        "stop": None,
        "n": None,
        "stream": False,
        "service_tier": "auto",
    }
    async with running.http() as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_an_unknown_model_is_not_found(running: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'other' does not exist; this server has fake, alias"):
        await running.openai().chat.completions.create(model="other", messages=HELLO)


async def test_a_template_that_refuses_is_a_bad_request(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = running.server.state.models.model
    monkeypatch.setattr(model.tokenizer, "chat_template", ChatTemplate("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(openai.BadRequestError, match="roles must alternate"):
        await running.openai().chat.completions.create(model="fake", messages=HELLO)
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        await running.openai().chat.completions.create(model="fake", messages=HELLO)


async def test_an_engines_error_before_the_first_token_has_its_status(running: Any) -> None:
    running.engine.error = "logits are not finite"
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="logits are not finite"):
            await running.openai().chat.completions.create(model="fake", messages=HELLO, stream=stream)


async def test_an_engines_error_in_a_stream_is_an_event(running: Any) -> None:
    running.engine.error, running.engine.error_after = "logits are not finite", 3
    stream = await running.openai().chat.completions.create(model="fake", messages=HELLO, stream=True)
    chunks = aiter(stream)
    seen = [(await anext(chunks)).choices[0].delta.content for _ in range(4)]
    with pytest.raises(openai.APIError, match="logits are not finite"):
        await anext(chunks)
    assert seen == ["", "H", "e", "l"]


async def test_what_the_engine_refuses_is_a_bad_request(running: Any) -> None:
    running.engine.refusal = "the cache is too small"
    for n in (1, 2):
        with pytest.raises(openai.BadRequestError, match="the cache is too small"):
            await running.openai().chat.completions.create(model="fake", messages=HELLO, n=n)


async def test_one_failing_answer_of_several_ends_the_others(running: Any) -> None:
    running.engine.error = "broken"
    with pytest.raises(openai.InternalServerError):
        await running.openai().chat.completions.create(model="fake", messages=HELLO, n=3)
    await running.engine.until(lambda: not running.engine.running)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_ends_the_work(running: Any, stream: bool, n: int) -> None:
    running.engine.pause()
    call = asyncio.create_task(
        running.openai().chat.completions.create(model="fake", messages=HELLO, stream=stream, n=n)
    )
    await running.engine.until(lambda: len(running.engine.running) == n)
    call.cancel()
    await running.engine.until(lambda: len(running.engine.aborted) == n)
    assert not running.engine.running
