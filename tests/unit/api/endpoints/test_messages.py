"""Anthropic's Messages API with its official client: complete output, streams, tools, reasoning, counts, models,
errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from gateway_support.front import gateway_before

from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% if enable_thinking is defined %}[{{ enable_thinking }}]"
    "{% endif %}{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "Of a city.", "input_schema": SCHEMA}
TIME: Any = {"type": "custom", "name": "get_time", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    """A server whose model writes tool calls in the format of Hermes."""
    with template(tokenizer, TEMPLATE):
        async with running_server(tokenizer) as running:
            yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(server: Any) -> AsyncIterator[str]:
    async with gateway_before(server.url, ("fake", "alias")) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module", params=["directly", "through the gateway"])
async def client(request: Any, server: Any, gateway: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    server.engine.reset()
    async with client_of(server.url if request.param == "directly" else gateway) as made:
        yield made


def client_of(url: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=120)


async def ask(client: anthropic.AsyncAnthropic, server: Any, answer: str = "Hello!", **fields: Any) -> Any:
    server.engine.reset()
    server.engine.answer = answer.encode()
    sampling = {name: fields.pop(name) for name in ("temperature", "top_p", "top_k") if name in fields}
    asked: dict[str, Any] = {"model": "fake", "messages": HELLO, "max_tokens": 200} | fields
    return await client.messages.create(**asked, extra_body=sampling)


def shown(server: Any) -> str:
    """Return the last prompt of the model."""
    return bytes(token for token in server.engine.asked[-1].prompt_token_ids if token < 256).decode()


async def test_a_message(client: Any, server: Any) -> None:
    message = await ask(client, server, temperature=0.5, top_p=0.9, top_k=5, metadata={"user_id": "u"})
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello!")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(server.engine.asked[0].prompt_token_ids)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.output_tokens) == (16, 0, 7)
    params = server.engine.asked[0].context.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 5, 200)


async def test_a_stream_is_the_same_message(client: Any, server: Any) -> None:
    whole = await ask(client, server)
    names: list[str] = []
    async with client.messages.stream(model="fake", messages=HELLO, max_tokens=200) as stream:
        async for event in stream:
            names.append(event.type)
        final = await stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", whole.usage.output_tokens)
    assert final.usage.input_tokens == whole.usage.input_tokens
    raw = [name for name in names if name != "text"]
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert raw[2:-3] == ["content_block_delta"] * 6


async def test_events_are_named_and_their_fields_are_anthropics(server: Any) -> None:
    server.engine.reset()
    server.engine.answer = b"ab"
    body = {"model": "fake", "messages": HELLO, "max_tokens": 1, "stream": True}
    async with server.http() as http:
        text = (await http.post("/v1/messages", json=body)).text
    *events, rest = text.split("\n\n")
    assert rest == ""
    parsed = []
    for event in events:
        name, data = event.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    start = parsed[0]["message"]
    assert start["id"].startswith("msg_")
    read = len(server.engine.asked[0].prompt_token_ids)
    usage = {"input_tokens": read - 16, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16}
    assert start == {
        "id": start["id"],
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 1},
    }
    assert parsed[1:] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": usage | {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


async def test_system_and_turns(client: Any, server: Any) -> None:
    blocks: list[Any] = [{"type": "text", "text": "You", "cache_control": {"type": "ephemeral"}}]
    turns: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "system", "content": "e"},
        {"role": "user", "content": "f"},
    ]
    await ask(client, server, system=[*blocks, {"type": "text", "text": "are"}], messages=turns)
    assert shown(server) == "<system>You\nare<user>a\nb\nc<assistant>d<system>e<user>f<assistant>"
    await ask(client, server, system="Be short.")
    assert shown(server) == "<system>Be short.<user>Hi<assistant>"


async def test_a_last_turn_of_the_assistant_is_continued(client: Any, server: Any) -> None:
    message = await ask(client, server, " B", messages=[*HELLO, {"role": "assistant", "content": "The answer is"}])
    assert shown(server) == "<user>Hi<assistant>The answer is"
    assert message.content[0].text == " B"


async def test_stop_sequences(client: Any, server: Any) -> None:
    message = await ask(client, server, "one two", stop_sequences=["two"])
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("one ", "stop_sequence", "two")
    message = await ask(client, server, "one STOPCHAT", stop_sequences=["two"])
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


async def test_how_long_an_answer_may_be(client: Any, server: Any) -> None:
    message = await ask(client, server, "Hello!", max_tokens=3)
    assert (message.content[0].text, message.stop_reason, message.usage.output_tokens) == ("Hel", "max_tokens", 3)
    message = await ask(client, server, "x" * 5000, max_tokens=64_000)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens < 5000
    message = await ask(client, server, max_tokens=0)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


async def test_a_prompt_that_is_too_long_is_told_as_agents_look_for_it(client: Any, server: Any) -> None:
    long: list[Any] = [{"role": "user", "content": "x" * 5000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .*5\d\d\d") as refused:
        await ask(client, server, messages=long)
    assert refused.value.error_code == "context_length_exceeded"
    counted = await client.messages.count_tokens(model="fake", messages=long)
    assert counted.input_tokens > 5000


async def test_a_call(client: Any, server: Any) -> None:
    message = await ask(client, server, f"I look.\n{CALL}\n{OTHER}\n", tools=[WEATHER, TIME])
    text, first, second = message.content
    assert (text.type, text.text.strip()) == ("text", "I look.")
    assert (first.type, first.name, first.input) == ("tool_use", "get_weather", {"city": "Köln"})
    assert (second.name, second.input) == ("get_time", {})
    assert first.id.startswith("toolu_")
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    told = json.loads(shown(server).split("<tool_call>")[0])
    assert told[0]["function"] == {"name": "get_weather", "description": "Of a city.", "parameters": SCHEMA}


async def test_tools_as_coding_agents_describe_them(client: Any, server: Any) -> None:
    """With keywords of JSON Schema that no grammar can enforce."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"answers": {"type": "object", "propertyNames": {"type": "string"}, "uniqueItems": True}},
        "additionalProperties": False,
    }
    message = await ask(client, server, CALL, tools=[{"name": "get_weather", "input_schema": schema}])
    assert message.content[0].input == {"city": "Köln"}
    assert server.engine.asked[0].context.params.constraint is not None


async def test_a_streamed_call(client: Any, server: Any) -> None:
    await ask(client, server)
    server.engine.answer = f"\n{CALL}".encode()
    pieces = []
    async with client.messages.stream(model="fake", messages=HELLO, max_tokens=200, tools=[WEATHER]) as stream:
        async for event in stream:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        final = await stream.get_final_message()
    [block] = final.content
    assert (block.type, block.input) == ("tool_use", {"city": "Köln"})
    assert json.loads("".join(pieces)) == block.input
    assert len(pieces) > 5
    assert final.stop_reason == "tool_use"


async def test_a_call_that_is_cut_off_has_what_there_is_of_it(client: Any, server: Any) -> None:
    message = await ask(
        client, server, CALL, tools=[WEATHER], max_tokens=len("".join(CALL.partition("Kö")[:2]).encode())
    )
    assert message.stop_reason == "max_tokens"
    assert message.content[0].input == {"city": "Kö"}
    message = await ask(client, server, CALL.replace("ln", "STOPCHAT"), tools=[WEATHER])
    assert (message.content[0].input, message.stop_reason) == ({"city": "Kö"}, "end_turn")


CHOICES: list[tuple[dict[str, Any], bool, bool]] = [
    ({"type": "auto"}, True, True),
    ({"type": "any", "disable_parallel_tool_use": True}, True, True),
    ({"type": "tool", "name": "get_weather"}, True, True),
    ({"type": "none"}, False, False),
]


async def test_tool_choice(client: Any, server: Any) -> None:
    for choice, called, constrained in CHOICES:
        message = await ask(client, server, CALL, tools=[WEATHER, TIME], tool_choice=choice)
        assert (message.stop_reason == "tool_use") == called, choice
        assert (server.engine.asked[0].context.params.constraint is not None) == constrained, choice
    sources = []
    for single in (True, False):
        await ask(
            client, server, CALL, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": single}
        )
        sources.append(server.engine.asked[0].context.params.constraint.source)
    assert sources[0] != sources[1]


async def test_calls_thoughts_and_results_in_the_conversation(client: Any, server: Any) -> None:
    turns: list[Any] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "toolu_2", "name": "get_time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    await ask(client, server, messages=turns, tools=[WEATHER, TIME])
    assert shown(server).split("<tool_call>")[1] == (
        '<user>Weather?<assistant>(Look.)I look.get_weather({"city": "Köln"})get_time({})'
        "<tool get_weather>rain<tool get_time><user>And?<assistant>"
    )


@pytest.mark.parametrize("thought", [{"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": ""}])
async def test_a_turn_of_which_nothing_can_be_told_is_an_empty_one(server: Any, thought: dict[str, Any]) -> None:
    hidden = {"role": "assistant", "content": [thought]}
    async with server.http() as http:
        for messages in ([hidden], [*HELLO, hidden]):
            counted = await http.post("/v1/messages/count_tokens", json={"model": "fake", "messages": messages})
            as_empty = [*messages[:-1], {"role": "assistant", "content": ""}]
            empty = await http.post("/v1/messages/count_tokens", json={"model": "fake", "messages": as_empty})
            assert (counted.status_code, counted.json()) == (200, empty.json())


async def test_thinking_is_the_templates_switch(client: Any, server: Any) -> None:
    for thinking, told in (
        ({"type": "enabled", "budget_tokens": 1024}, "[True]"),
        ({"type": "disabled"}, "[False]"),
        ({"type": "adaptive"}, ""),
    ):
        await ask(client, server, thinking=thinking, max_tokens=2000)
        assert shown(server).startswith(f"{told}<user>"), thinking


async def test_thoughts_are_blocks(server: Any, tokenizer: Tokenizer) -> None:
    thought = "<think>\nHm.\n</think>\n\n"
    with template(tokenizer, TEMPLATE + "{# </think> #}"):
        async with client_of(server.url) as made:
            thinking = {"type": "enabled", "budget_tokens": 1024}
            message = await ask(made, server, f"{thought}I look.{CALL}", tools=[WEATHER], thinking=thinking)
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
            assert message.content[0].thinking == "Hm."
            assert message.content[0].signature
            assert server.engine.asked[0].context.params.thought.budget == 1024
            stream = await ask(made, server, f"{thought}Two.", thinking=thinking, stream=True)
            deltas = [event.delta async for event in stream if event.type == "content_block_delta"]
            assert [delta.type for delta in deltas] == ["thinking_delta"] * 3 + ["signature_delta"] + ["text_delta"] * 4
            assert deltas[3].signature == message.content[0].signature
            untold = await ask(made, server, f"{thought}Two.", thinking={"type": "adaptive", "display": "omitted"})
            assert [block.type for block in untold.content] == ["thinking", "text"]
            assert untold.content[0].thinking == ""
            assert untold.content[0].signature == message.content[0].signature


async def test_an_answer_of_a_schema(client: Any, server: Any) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    await ask(client, server, '{"city": "Bonn"}', output_config=form)
    assert server.engine.asked[0].context.params.constraint.kind == "json"


async def test_counting(client: Any, server: Any) -> None:
    message = await ask(client, server, tools=[WEATHER], system="s")
    counted = await client.messages.count_tokens(model="fake", messages=HELLO, tools=[WEATHER], system="s")
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert len(server.engine.asked) == 1


async def test_models(client: Any, server: Any) -> None:
    page = await client.models.list(limit=1)
    assert (len(page.data), page.has_more) == (1, True)
    names = sorted(["fake", "alias"], key=page.data[0].id.__ne__)
    assert [model.id async for model in client.models.list(limit=1)] == names
    assert [model.id for model in (await client.models.list(before_id=names[1])).data] == names[:1]
    found = await client.models.retrieve("fake")
    assert (found.type, found.display_name, found.lifecycle) == ("model", "fake", "active")
    assert found.created_at.isoformat() == "2023-11-14T22:13:20+00:00"
    assert (found.max_input_tokens, found.max_tokens) == (4096, 4096)
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.models.retrieve("other")
    assert missing.value.type == "not_found_error"
    for query in ({"limit": 0}, {"limit": 1001}, {"after_id": "none"}, {"after_id": "fake", "before_id": "alias"}):
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.models.list(**query)
        assert refused.value.type == "invalid_request_error", query


RESULT = {"type": "tool_result", "tool_use_id": "a"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "'max_tokens'"),
    ({"messages": []}, "'messages'"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "'messages[0].role'"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "type 'image' is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'messages[0].content[0].text'"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "'messages[0].content[0]'"),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]}],
                }
            ]
        },
        "'messages[0].content[0].content[0]': a block of the type 'document'",
    ),
    (
        {"messages": [{"role": "user", "content": [USE]}]},
        "'messages[0].content[0]': a block of type 'tool_use' belongs in a turn of the assistant",
    ),
    (
        {"messages": [{"role": "assistant", "content": [RESULT]}]},
        "'messages[0].content[0]': a block of type 'tool_result' belongs in a turn of the user",
    ),
    ({"messages": [{"role": "user", "content": [RESULT] * 4000}] * 2}, "turns and tool results are 8000"),
    ({"messages": [{"role": "assistant", "content": [USE] * 513}]}, "a turn has more tool calls than the limit of 512"),
    ({"system": [{"type": "image"}]}, "'system[0]'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305' are not supported"),
    ({"tools": [{"name": "f"}]}, "'tools[0].input_schema'"),
    ({"tools": [WEATHER | {"name": "a b"}]}, "'tools[0].name'"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
        "'tool_choice': the request has no tool 'other'",
    ),
    ({"tool_choice": {"type": "any"}}, "'tool_choice': it needs 'tools'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "'tool_choice'"),
    ({"tools": [WEATHER | {"input_schema": {"type": "array", "uniqueItems": True}, "strict": True}]}, "uniqueItems"),
    ({"stop_sequences": [""]}, "'stop_sequences'"),
    ({"temperature": -1}, "'temperature'"),
    ({"thinking": {"type": "enabled"}}, "'thinking.budget_tokens'"),
    ({"thinking": {"type": "hard"}}, "'thinking'"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "'output_config.format'"),
]


async def test_what_cannot_be_done_is_refused_with_its_name(server: Any) -> None:
    server.engine.reset()
    async with server.http() as http:
        for change, told in REFUSED:
            body = {"model": "fake", "messages": HELLO, "max_tokens": 5} | change
            answer = await http.post("/v1/messages", json={k: v for k, v in body.items() if v is not None})
            assert answer.status_code == 400, (change, answer.text)
            error = answer.json()
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
            assert told in error["error"]["message"], (change, error)
            assert error["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert server.engine.asked == []


async def test_what_is_not_known_is_named(client: Any, server: Any) -> None:
    server.engine.reset()
    answer = await client.messages.with_raw_response.create(
        model="fake", messages=[HELLO[0] | {"mood": 1}], max_tokens=5, extra_body={"container": "x"}
    )
    assert answer.headers["x-plimsoll-ignored"] == "container, messages[0].mood"


async def test_an_unknown_model(client: Any, server: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'other' does not exist") as missing:
        await ask(client, server, model="other")
    assert (missing.value.type, missing.value.error_code) == ("not_found_error", "model_not_found")
    assert missing.value.request_id


async def test_an_unknown_path_in_its_form(server: Any) -> None:
    async with server.http() as http:
        for method, path, status in (("POST", "/v1/messages/batches", 404), ("GET", "/v1/messages", 405)):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["type"]) == (status, "error")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails(client: Any, server: Any, stream: bool) -> None:
    server.engine.reset()
    server.engine.error, server.engine.error_after = "broken", 1

    async def fail() -> None:
        answer = await client.messages.create(model="fake", messages=HELLO, max_tokens=9, stream=stream)
        _ = [event async for event in answer]

    with pytest.raises(anthropic.APIStatusError, match="broken") as failed:
        await fail()
    assert failed.value.type == "api_error"


async def test_a_full_server_is_overloaded(run_server: Any) -> None:
    async with run_server(max_waiting=1) as server, client_of(server.url) as client:
        server.engine.pause()
        async with client_of(server.url) as other:
            waiting = asyncio.create_task(other.messages.create(model="fake", messages=HELLO, max_tokens=3))
            await server.engine.until(lambda: len(server.engine.running) == 1)
            with pytest.raises(anthropic.OverloadedError) as full:
                await client.messages.create(model="fake", messages=HELLO, max_tokens=3)
            server.engine.resume()
            await waiting
        assert (full.value.status_code, full.value.type) == (529, "overloaded_error")
        assert int(full.value.response.headers["retry-after"]) > 0


async def test_keys(run_server: Any) -> None:
    async with run_server(api_keys=("secret",)) as server:
        async with client_of(server.url, "secret") as client:
            assert (await client.messages.create(model="fake", messages=HELLO, max_tokens=9)).content
        bearer = anthropic.AsyncAnthropic(base_url=server.url, auth_token="secret", max_retries=0)
        async with bearer:
            assert (await bearer.models.list()).data
        async with client_of(server.url, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await client.messages.create(model="fake", messages=HELLO, max_tokens=9)
            assert refused.value.type == "authentication_error"
        async with server.http() as http:
            assert (await http.get("/v1/models", headers={"x-api-key": "secret"})).status_code == 200
            assert "error" in (await http.get("/v1/models")).json()
