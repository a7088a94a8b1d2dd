"""Tools: the prompt and the constraint of the model, and its calls for clients, complete and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}"
    "{% if m.name %} {{ m.name }}{% endif %}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}"
)
WEATHER = {
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME = {"name": "get_time"}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}, {"type": "function", "function": TIME}]
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ARGUMENTS = {"city": "Köln", "days": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    """A server whose model writes tool calls in the format of Hermes."""
    with template(tokenizer, TEMPLATE):
        async with running_server(tokenizer) as running:
            yield running


async def ask(calling: Any, answer: str, **fields: Any) -> Any:
    calling.engine.reset()
    calling.engine.answer = answer.encode()
    return await calling.openai().chat.completions.create(
        **{"model": "fake", "messages": HELLO, "tools": TOOLS, **fields}
    )


async def test_a_call(calling: Any) -> None:
    answer = await ask(calling, CALL)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert call.id.startswith("call_")
    [asked] = calling.engine.asked
    shown = bytes(token for token in asked.prompt_token_ids if token < 256).decode()
    assert json.loads(shown.split("<tool_call>")[0])[0] == TOOLS[0]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_some_tools_may_be_called(calling: Any, mode: str) -> None:
    """The model sees only these tools, and must call one of them if the mode says so."""
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    answer = await ask(calling, OTHER, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["get_time"]
    [asked] = calling.engine.asked
    shown = bytes(token for token in asked.prompt_token_ids if token < 256).decode()
    assert "get_weather" not in shown
    assert "get_weather" not in asked.context.params.constraint.source
    required = {"tools": [TOOLS[1]], "tool_choice": mode}
    await ask(calling, OTHER, **required)
    assert calling.engine.asked[-1].context.params.constraint == asked.context.params.constraint


async def test_tools_that_may_be_called_must_be_there(calling: Any) -> None:
    for names, told in ((["get_time", "get_rain"], "the request has no tool 'get_rain'"), ([], "at least 1 item")):
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}} for name in names]}
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(calling, OTHER, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
        assert refused.value.param == "tool_choice.allowed_tools.tools"
        assert told in refused.value.message


async def test_it_is_listed_as_able_to_call(calling: Any) -> None:
    async with calling.http() as http:
        card = (await http.get("/v1/models/fake")).json()
    assert card["abilities"] == ["structured_outputs", "chat", "tools"]
    assert card["max_model_len"] == 4096


async def test_words_and_two_calls(calling: Any) -> None:
    answer = await ask(calling, f"I look.\n{CALL}\n{OTHER}")
    message = answer.choices[0].message
    assert message.content.strip() == "I look."
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
    assert len({call.id for call in message.tool_calls}) == 2


async def test_words_alone(calling: Any) -> None:
    answer = await ask(calling, "It rains, with a <b> in it.")
    assert answer.choices[0].message.content == "It rains, with a <b> in it."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


async def test_a_stream(calling: Any) -> None:
    stream = await ask(calling, f"I look.\n{CALL}\n{OTHER}", stream=True)
    words, reasons = "", []
    calls: dict[int, dict[str, Any]] = {}
    async for chunk in stream:
        [choice] = chunk.choices
        words += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for added in choice.delta.tool_calls or ():
            call = calls.setdefault(added.index, {"id": added.id, "name": added.function.name, "arguments": ""})
            call["arguments"] += added.function.arguments
    assert words.strip() == "I look."
    assert [call["name"] for call in calls.values()] == ["get_weather", "get_time"]
    assert [json.loads(call["arguments"]) for call in calls.values()] == [ARGUMENTS, {}]
    assert all(call["id"].startswith("call_") for call in calls.values())
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


async def test_arguments_are_streamed_as_they_come(calling: Any) -> None:
    stream = await ask(calling, CALL, stream=True)
    parts = [a.function.arguments async for c in stream for a in c.choices[0].delta.tool_calls or ()]
    assert len(parts) > 10
    assert json.loads("".join(parts)) == ARGUMENTS


async def test_log_probabilities_stay_with_their_tokens(calling: Any) -> None:
    answer = await ask(calling, CALL, logprobs=True)
    assert len(answer.choices[0].logprobs.content) == len(CALL.encode()) + 1
    stream = await ask(calling, CALL, logprobs=True, stream=True)
    told = [c.choices[0].logprobs.content async for c in stream if c.choices[0].logprobs]
    assert sum(map(len, told)) == len(CALL.encode()) + 1


async def test_each_choice_is_read_by_itself(calling: Any) -> None:
    answer = await ask(calling, CALL, n=3)
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["get_weather"] * 3
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 3


CUTS: list[tuple[dict[str, Any], str, str, bool]] = [
    ({"stop": ["ln"]}, "stop", '{"city": "Kö', True),
    ({"stop": [": 3}"]}, "stop", '{"city": "Köln", "days"', True),
    ({"stop": ["</tool"]}, "tool_calls", '{"city": "Köln", "days": 3}', False),
    ({"max_tokens": 56}, "length", '{"city"', True),
    ({"max_tokens": len(CALL.encode()) - 9}, "length", '{"city": "Köln", "days": 3}', False),
    (
        {"max_tokens": 56, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        "length",
        '{"city"',
        True,
    ),
    (
        {"stop": ["ln"], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        "stop",
        '{"city": "Kö',
        True,
    ),
]
"""What cuts off `CALL`, the finish reason, the rest of its arguments, and whether they are cut off."""


@pytest.mark.parametrize(("cut", "reason", "arguments", "is_cut"), CUTS)
async def test_a_call_that_is_cut_is_marked(
    calling: Any, cut: dict[str, Any], reason: str, arguments: str, is_cut: bool
) -> None:
    [choice] = (await ask(calling, CALL, **cut)).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.arguments) == (reason, arguments)
    assert getattr(call, "status", None) == ("incomplete" if is_cut else None)
    told, marks, reasons = "", [], []
    async for chunk in await ask(calling, CALL, stream=True, **cut):
        reasons.append(chunk.choices[0].finish_reason)
        for added in chunk.choices[0].delta.tool_calls or ():
            told += added.function.arguments
            marks.append(getattr(added, "status", None))
    assert (told, reasons[-1]) == (arguments, reason)
    assert [mark for mark in marks if mark is not None] == ["incomplete"] * is_cut


async def test_the_last_call_says_why_an_answer_ends(calling: Any) -> None:
    """An earlier call may be incomplete: it is marked, and the last call is to be run."""
    broken = '<tool_call>\n{"name": "get_weather", "arguments": {"city": oops}}\n</tool_call>\n'
    for answer, marks, reason in (
        (broken + OTHER, ["incomplete", None], "tool_calls"),
        (OTHER + broken, [None, "incomplete"], "stop"),
    ):
        [choice] = (await ask(calling, answer)).choices
        assert [getattr(call, "status", None) for call in choice.message.tool_calls] == marks
        assert choice.finish_reason == reason


CHOICES: list[tuple[Any, str, bool]] = [
    ("auto", "tool_calls", True),
    ("required", "tool_calls", True),
    ({"type": "function", "function": {"name": "get_weather"}}, "stop", True),
    ("none", "stop", False),
]


async def test_what_it_is_kept_to(calling: Any) -> None:
    for choice, reason, called in CHOICES:
        answer = await ask(calling, CALL, tool_choice=choice)
        assert answer.choices[0].finish_reason == reason, choice
        assert bool(answer.choices[0].message.tool_calls) == called, choice
        constraint = calling.engine.asked[0].context.params.constraint
        assert (constraint is not None and constraint.kind == "lark") == called, choice
        if isinstance(choice, dict):
            assert "get_time" not in constraint.source
        shown = bytes(token for token in calling.engine.asked[0].prompt_token_ids if token < 256).decode()
        assert ("get_weather" in shown) == called


async def test_the_form_before(calling: Any) -> None:
    fields: dict[str, Any] = {"functions": [WEATHER], "function_call": "auto", "tools": None}
    answer = await ask(calling, CALL, **fields)
    [choice] = answer.choices
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call.name == "get_weather"
    assert choice.message.tool_calls is None
    arguments = ""
    stream = await ask(calling, CALL, stream=True, **fields)
    async for chunk in stream:
        if (added := chunk.choices[0].delta.function_call) is not None:
            arguments += added.arguments
    assert json.loads(arguments) == ARGUMENTS
    [cut] = (await ask(calling, CALL, stop=["ln"], **fields)).choices
    assert (cut.finish_reason, cut.message.function_call.arguments) == ("stop", '{"city": "Kö')


async def test_calls_and_results_in_the_conversation(calling: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "Once more.", "function_call": {"name": "get_time", "arguments": ""}},
        {"role": "function", "name": "get_time", "content": "noon"},
    ]
    await ask(calling, "Fine.", messages=messages)
    shown = bytes(token for token in calling.engine.asked[0].prompt_token_ids if token < 256).decode()
    assert '[assistant] get_weather({"city": "Köln"})[tool get_weather] rain' in shown
    assert "[assistant] Once more.get_time({})[tool get_time] noon" in shown


def assistant(arguments: Any) -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}]


UNENFORCEABLE = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"days": {"type": "array", "uniqueItems": True}}},
}


async def test_a_schema_that_cannot_be_enforced_and_need_not_be(calling: Any) -> None:
    tools = [{"type": "function", "function": UNENFORCEABLE}, TOOLS[1]]
    for stream in (False, True):
        answer = await ask(calling, CALL, tools=tools, stream=stream)
        if stream:
            assert [chunk async for chunk in answer][-1].choices[0].finish_reason == "tool_calls"
        else:
            assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS
        constraint = calling.engine.asked[0].context.params.constraint
        assert (constraint.kind, "uniqueItems" in constraint.source) == ("lark", False)
        assert '"days": {"type": "array"}' in constraint.source
        assert '{"type": "object", "additionalProperties": false' in constraint.source  # of get_time
    unreadable = {"name": "get_time", "parameters": {"type": "object", "properties": {"a": {"type": "any thing"}}}}
    await ask(calling, CALL, tools=[TOOLS[0], {"type": "function", "function": unreadable}])
    constraint = calling.engine.asked[0].context.params.constraint
    assert '"properties": {"a": {}}' in constraint.source
    assert '"city"' in constraint.source
    calling.engine.reset()
    required = {"model": "fake", "messages": HELLO, "tools": tools, "tool_choice": "required"}
    async with calling.http() as http:
        answer = await http.post("/v1/chat/completions", json=required)
        place = "tools[get_weather].function.parameters/properties/days/uniqueItems"
        assert (answer.status_code, answer.headers["x-plimsoll-ignored"]) == (200, place)
        required["tools"] = [{"type": "function", "function": unreadable}]
        answer = await http.post("/v1/chat/completions", json=required)
        place = "tools[get_time].function.parameters"
        assert (answer.status_code, answer.headers["x-plimsoll-ignored"]) == (200, place)
        required["tools"] = [{"type": "function", "function": unreadable | {"strict": True}}]
        refused = await http.post("/v1/chat/completions", json=required)
    assert refused.status_code == 400
    assert "the tool 'get_time', at '/properties/a/type': must be one of null, boolean" in refused.text


@pytest.mark.parametrize(
    ("choice", "answer", "calls"),
    [("auto", '{"a": 5}', 0), ("auto", CALL, 1), ("required", CALL, 1)],
)
async def test_an_answer_of_a_form_or_a_call(calling: Any, choice: str, answer: str, calls: int) -> None:
    """With a required call, output in the format is no valid answer."""
    form = {"type": "object", "properties": {"a": {"type": "integer"}}}
    kept: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": form}}
    found = await ask(calling, answer, tool_choice=choice, response_format=kept)
    message = found.choices[0].message
    assert (len(message.tool_calls or ()), message.content) == (calls, None if calls else answer)
    [asked] = calling.engine.asked
    assert ("document: %json" in asked.context.params.constraint.source) == (choice == "auto")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "'function'"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "issing"),
    ({"tool_choice": "required"}, "tool_choice", "it needs 'tools'"),
    ({"function_call": {"name": "f"}}, "function_call", "it needs 'functions'"),
    ({"tools": TOOLS, "functions": [WEATHER]}, "functions", "'tools' is also set; leave out 'functions'"),
    ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice", "'auto'"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        "tool_choice",
        "the request has no tool 'other'",
    ),
    ({"tools": TOOLS, "structured_outputs": {"regex": "a+"}}, "structured_outputs", "only be constrained to JSON"),
    (
        {"tools": [{"type": "function", "function": UNENFORCEABLE | {"strict": True}}]},
        "tools",
        "uniqueItems",
    ),
    ({"tools": TOOLS, "min_tokens": 3}, "min_tokens", "with a constraint"),
    ({"messages": assistant(5)}, "messages[0].tool_calls[0].function.arguments", "valid string"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "the id of the tool call"),
    (
        {"messages": [{**assistant("{}")[0], "role": "user"}]},
        "messages[0].tool_calls",
        "only messages of the assistant",
    ),
]


async def test_what_cannot_be_done_is_refused_with_its_name(calling: Any) -> None:
    calling.engine.reset()
    async with calling.http() as http:
        for change, param, told in REFUSED:
            answer = await http.post("/v1/chat/completions", json={"model": "fake", "messages": HELLO} | change)
            error = answer.json()["error"]
            assert answer.status_code == 400, (change, answer.text)
            assert error["param"] == param, (change, error)
            assert told in error["message"], (change, error)
    assert calling.engine.asked == []
