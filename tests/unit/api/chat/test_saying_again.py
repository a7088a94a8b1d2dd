"""Output of the server can be sent back as history, however it ended and whatever the template accepts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from plimsoll_runtime.api.generation.prompts import forms_of
from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import Running, running_server, template

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = {
    "as JSON": "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}",
    "as JSON or as they are": (
        "{% if c.function.arguments is string %}{{ c.function.arguments }}"
        "{% else %}{{ c.function.arguments | tojson }}{% endif %}"
    ),
    "by fields": "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }} {% endfor %}",
    "by the object's method": "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }} {% endfor %}",
    "as text": "{{ c.function.name + '\n' + c.function.arguments + '\n' }}",
    "with ids of nine characters": (
        "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
        "{{ c.function | tojson }}"
    ),
}
"""Formats of tool calls in templates."""
RESULTS = {
    "with ids of nine characters": (
        "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('nine, please') }}{% endif %}"
    )
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
FUNCTIONS: list[dict[str, Any]] = [{"name": "get_weather", "parameters": SCHEMA}, {"name": "now"}]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
HELLO = {"role": "user", "content": "Hi"}
PIECES = (
    "It rains. ",
    "\n",
    "Wrap it in <tool_call> tags: ",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln \\"a\\" {", "days": [1, 2]}}\n</tool_call>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "\\ud83d", "days": null}}\n</tool_call>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": 1, oops}}\n</tool_call>',
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
    '<tool_call>\n{"name": "now", "arguments": [1]}\n</tool_call>',
)
ENDS = ("whole", "length", "stop")

Ask = Callable[..., Awaitable[Any]]


def source(style: str) -> str:
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
        + RESULTS.get(style, "")
        + "<{{ m.role }}>"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>" + CALLS[style] + "</tool_call>{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}{{ '' if true else 'arguments' }}"
    )


def answer_of(chance: random.Random) -> str:
    thought = chance.choice(["", "", "<think>\nHm, a call?\n</think>\n\n"])
    return thought + "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 4)))


def fields_of(chance: random.Random, answer: str, length: str, stop: str | None) -> dict[str, Any]:
    """Return what ends the output: the EOS token, a number of tokens or, if the endpoint has one, a stop string."""
    match chance.choice(ENDS):
        case "length":
            return {length: chance.randrange(1, len(answer.encode()) + 1)}
        case "stop" if stop is not None:
            begin = chance.randrange(len(answer))
            return {stop: [answer[begin : begin + chance.randrange(1, 6)]]}
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CALLS)
async def served(request: Any, tokenizer: Tokenizer) -> AsyncIterator[tuple[str, Running]]:
    """A server that refuses unknown fields, and the format of tool calls in its template."""
    with template(tokenizer, source(request.param)):
        async with running_server(tokenizer, strict_parameters=True) as running:
            yield request.param, running


@pytest_asyncio.fixture(loop_scope="module")
async def ask(served: tuple[str, Running]) -> AsyncIterator[Ask]:
    running = served[1]

    async def asked(path: str, answer: str, **body: Any) -> Any:
        running.engine.answer = answer.encode()
        got = await http.post(path, json={"model": "fake", **body})
        assert got.status_code == 200, (got.text, answer, body)
        assert httpx.Headers(got.headers).get("x-plimsoll-ignored") is None
        return _events(got.text) if body.get("stream") else got.json()

    running.engine.reset()
    async with running.http() as http:
        yield asked


def _events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def put_together(chunks: list[Any]) -> tuple[dict[str, Any], str]:
    """Return the message that a chat's chunks add up to, as clients add them, and its finish reason."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    reason = ""
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        if "reasoning_content" in delta:
            message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
        for more in delta.get("tool_calls", ()):
            call = calls.setdefault(more["index"], {"function": {"arguments": ""}})
            call["function"]["arguments"] += more["function"]["arguments"]
            call["function"] |= {key: value for key, value in more["function"].items() if key == "name"}
            call |= {key: value for key, value in more.items() if key != "function"}
        reason = choice.get("finish_reason") or reason
    return message | ({"tool_calls": list(calls.values())} if calls else {}), reason


def is_whole(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


@pytest.mark.matrix(2)
@pytest.mark.parametrize("seed", range(8))
async def test_a_chat_goes_on(ask: Ask, seed: int) -> None:
    chance = random.Random(seed)
    answer, streamed = answer_of(chance), chance.random() < 0.5
    end = fields_of(chance, answer, "max_tokens", "stop")
    got = await ask("/v1/chat/completions", answer, messages=[HELLO], tools=TOOLS, stream=streamed, **end)
    message, reason = (
        put_together(got) if streamed else (got["choices"][0]["message"], got["choices"][0]["finish_reason"])
    )
    calls = message.get("tool_calls") or []
    assert [call.get("status") for call in calls] == [
        None if is_whole(call["function"]["arguments"]) else "incomplete" for call in calls
    ]
    if "max_tokens" not in end:
        assert reason == ("tool_calls" if calls and "status" not in calls[-1] else "stop")
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "?"} for call in calls]
    for more in ([], [HELLO], [*results, HELLO]):
        await ask("/v1/chat/completions", "ok", messages=[HELLO, message, *more], tools=TOOLS)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("seed", range(3))
async def test_a_chat_in_the_form_before_goes_on(ask: Ask, served: tuple[str, Running], seed: int) -> None:
    if "ids" in served[0]:
        return  # calls of this format have none
    chance = random.Random(seed)
    answer = answer_of(chance)
    end = fields_of(chance, answer, "max_completion_tokens", "stop")
    got = await ask("/v1/chat/completions", answer, messages=[HELLO], functions=FUNCTIONS, **end)
    message = got["choices"][0]["message"]
    result = [{"role": "function", "name": "now", "content": "?"}] if "function_call" in message else []
    for more in ([], [HELLO], [*result, HELLO]):
        await ask("/v1/chat/completions", "ok", messages=[HELLO, message, *more], functions=FUNCTIONS)


RESPONSE_TOOLS = [{"type": "function", **function} for function in FUNCTIONS]


def check_items(response: Any) -> list[Any]:
    """Check the results of a response's calls."""
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    for call in calls:
        assert call["status"] == ("completed" if is_whole(call["arguments"]) else "incomplete")
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "?"} for call in calls]


@pytest.mark.matrix(4)
@pytest.mark.parametrize("seed", range(6))
async def test_a_response_goes_on(ask: Ask, seed: int) -> None:
    chance = random.Random(seed)
    answer, streamed = answer_of(chance), chance.random() < 0.5
    end = fields_of(chance, answer, "max_output_tokens", None)
    got = await ask("/v1/responses", answer, input="Hi", tools=RESPONSE_TOOLS, stream=streamed, **end)
    response = got[-1]["response"] if streamed else got
    results = check_items(response)
    for more in ([HELLO], [*results, HELLO]):
        await ask("/v1/responses", "ok", input=[HELLO, *response["output"], *more], tools=RESPONSE_TOOLS)
        await ask("/v1/responses", "ok", input=more, previous_response_id=response["id"], tools=RESPONSE_TOOLS)
    await ask("/v1/responses", "ok", input=[HELLO, *response["output"]], tools=RESPONSE_TOOLS)


@pytest.mark.matrix(7)
@pytest.mark.parametrize("seed", range(4))
async def test_a_response_that_was_cancelled_goes_on(ask: Ask, served: tuple[str, Running], seed: int) -> None:
    chance, engine = random.Random(seed), served[1].engine
    answer = answer_of(chance)
    engine.pause()
    started = await ask("/v1/responses", answer, input="Hi", tools=RESPONSE_TOOLS, background=True)
    engine.resume()
    for _ in range(chance.randrange(len(answer))):
        await asyncio.sleep(0)
    path = f"/v1/responses/{started['id']}"
    async with served[1].http() as http:
        ended = (await http.post(f"{path}/cancel")).json()
    results = check_items(ended)
    for more in ([HELLO], [*results, HELLO]):
        await ask("/v1/responses", "ok", input=[HELLO, *ended["output"], *more], tools=RESPONSE_TOOLS)
        await ask("/v1/responses", "ok", input=more, previous_response_id=started["id"], tools=RESPONSE_TOOLS)


@pytest.mark.matrix(6)
@pytest.mark.parametrize("seed", range(6))
async def test_a_message_goes_on(ask: Ask, seed: int) -> None:
    chance = random.Random(seed)
    answer = answer_of(chance)
    tools = [{"name": tool["name"], "input_schema": tool.get("parameters", {"type": "object"})} for tool in FUNCTIONS]
    end = {"max_tokens": 1000} | fields_of(chance, answer, "max_tokens", "stop_sequences")
    got = await ask("/v1/messages", answer, messages=[HELLO], tools=tools, **end)
    said = {"role": "assistant", "content": got["content"]}
    used = [block["id"] for block in got["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call, "content": "?"} for call in used]
    for more in ([], [HELLO], [{"role": "user", "content": [*results, {"type": "text", "text": "Hi"}]}]):
        await ask("/v1/messages", "ok", messages=[HELLO, said, *more], tools=tools, max_tokens=9)


async def test_templates_are_given_what_was_written() -> None:
    """An object or a list by its value, other text unchanged: no output of the model is lost."""
    written = ['{"city": "Kö', "[1, 2]", "3", "so", '{"a": "\\ud83d"}', "", '{"a": 1}']
    calls = [{"id": "c", "function": {"name": "f", "arguments": text}} for text in written]
    first, objects, texts, *_ = forms_of([{"role": "assistant", "content": "", "tool_calls": calls}])
    assert _arguments(first) == ['{"city": "Kö', [1, 2], "3", "so", '{"a": "\\ud83d"}', {}, {"a": 1}]
    assert _arguments(objects) == [
        {"city": "Kö"},
        *({"arguments": value} for value in ([1, 2], "3", "so", '{"a": "\\ud83d"}')),
        {},
        {"a": 1},
    ]
    assert _arguments(texts) == [text or "{}" for text in written]


def _arguments(messages: Any) -> list[Any]:
    return [call["function"]["arguments"] for call in messages[0]["tool_calls"]]


async def test_what_no_form_helps_is_refused_with_the_template_s_words(tokenizer: Tokenizer) -> None:
    refusing = source("as JSON") + "{% if messages | length > 2 %}{{ raise_exception('roles take turns') }}{% endif %}"
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{"}}
    messages = [HELLO, {"role": "assistant", "tool_calls": [call]}, HELLO]
    with template(tokenizer, refusing):
        async with running_server(tokenizer) as running, running.http() as http:
            got = await http.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
    assert (got.status_code, got.json()["error"]["param"]) == (400, "messages")
    assert "roles take turns" in got.json()["error"]["message"]
