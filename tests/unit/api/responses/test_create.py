"""POST /v1/responses with OpenAI's own client: the request, and the complete response."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from tests.unit.api.responses.conftest import Talk

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": None, "strict": None}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
LOGPROBS: Any = ["message.output_text.logprobs"]


async def test_a_text(talk: Talk) -> None:
    response = await talk.create(model="alias", instructions="Be kind.")
    assert (response.status, response.output_text, response.model) == ("completed", "Hello!", "fake")
    [message] = response.output
    assert message.type == "message"
    assert message.status == "completed"
    assert talk.shown == "[system] Be kind.[user] Hi"
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (26, 7, 33)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (16, 0)
    assert response.completed_at is not None
    assert (response.error, response.incomplete_details) == (None, None)


async def test_what_was_asked_is_told_again(talk: Talk) -> None:
    asked: dict[str, Any] = {
        "instructions": "Be kind.",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "temperature": 0.5,
        "tool_choice": "auto",
        "tools": [WEATHER, TIME],
        "top_p": 0.25,
        "truncation": "auto",
        "user": "u",
        "top_logprobs": 2,
        "include": LOGPROBS,
    }
    response = await talk.create(**asked, service_tier="auto")
    told = json.loads(response.model_dump_json())
    expected = asked | {"tools": [WEATHER, TIME | {"description": None}]}
    del expected["include"]
    for name, value in expected.items():
        found = told[name]
        if name == "tools":
            found = [{key: tool[key] for key in WEATHER} for tool in found]
        assert found == value, name
    assert (told["service_tier"], told["text"]["format"], told["background"]) == ("default", {"type": "text"}, False)
    [params] = [request.context.params for request in talk.engine.asked]
    assert (params.temperature, params.top_p, params.max_tokens, params.logprobs) == (0.5, 0.25, 50, 2)


async def test_items_of_all_kinds_become_a_chat(talk: Talk) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Wie ist"}, text("das Wetter?")],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            "id": "msg_1",
        },
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Köln"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_time", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": "noon"},
        {"type": "function_call_output", "call_id": "c1", "output": [text("rain")]},
        {"role": "user", "content": "So?"},
    ]
    await talk.create(input=items, instructions="Be kind.")
    assert talk.shown == (
        "[system] Be kind.\n\nBe brief.[user] Wie ist\ndas Wetter?"
        '[assistant] (Hm.)I look.get_weather({"city": "Köln"})get_time({})'
        "[tool get_time] noon[tool get_weather] rain[user] So?"
    )


async def test_an_assistant_may_have_refused(talk: Talk) -> None:
    """In the request, and in the stored response."""
    refusal = {"type": "refusal", "refusal": "I will not."}
    said: list[Any] = [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": [refusal]}]
    first = await talk.create(input=said)
    assert talk.shown == "[user] Do it.[assistant] I will not."
    await talk.create(input="Why?", previous_response_id=first.id)
    assert talk.shown.startswith("[user] Do it.[assistant] I will not.")
    for where, item in (
        ("content", {"role": "user", "content": [text("a"), refusal]}),
        ("output", {"type": "function_call_output", "call_id": "c", "output": [text("a"), refusal]}),
    ):
        with pytest.raises(
            openai.BadRequestError, match="only messages of the assistant may have a refusal"
        ) as refused:
            await talk.create(input=[item])
        assert refused.value.param == f"input[0].{where}[1].type"


def text(words: str) -> dict[str, str]:
    return {"type": "input_text", "text": words}


async def test_a_call(talk: Talk) -> None:
    talk.answers(f"I look.\n{CALL}\n{OTHER}\n")
    response = await talk.create(tools=[WEATHER, TIME])
    message, call, other = response.output
    assert (message.type, response.output_text.strip()) == ("message", "I look.")
    assert call.type == other.type == "function_call"
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Köln"}, "completed")
    assert (other.name, other.arguments) == ("get_time", "{}")
    assert len({call.id, other.id, message.id, call.call_id, other.call_id}) == 5
    shown = json.loads(talk.shown.split("<tool_call>")[0])
    assert [tool["function"]["name"] for tool in shown] == ["get_weather", "get_time"]


async def test_a_call_goes_on_with_its_result(talk: Talk) -> None:
    """As in the client's documentation: with the response's own items, and by the response's id."""
    talk.answers(CALL)
    first = await talk.create(tools=[WEATHER])
    [call] = first.output
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    shown = []
    for fields in (
        {"input": [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in first.output), result]},
        {"input": [result], "previous_response_id": first.id},
    ):
        talk.answers("It rains.")
        second = await talk.create(tools=[WEATHER], **fields)
        assert second.output_text == "It rains."
        shown.append(talk.shown.split("<tool_call>")[1])
    assert shown[0] == shown[1] == '[user] Hi[assistant] get_weather({"city": "Köln"})[tool get_weather] rain'


@pytest.mark.parametrize(
    ("choice", "names", "required"),
    [
        ("none", None, False),
        ("auto", ["get_weather", "get_time"], False),
        ("required", ["get_weather", "get_time"], True),
        ({"type": "function", "name": "get_time"}, ["get_weather", "get_time"], True),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
            ["get_time"],
            False,
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
            ["get_time"],
            True,
        ),
    ],
)
async def test_which_tools_may_be_called(talk: Talk, choice: Any, names: list[str] | None, required: bool) -> None:
    talk.answers("Hello!" if not required else OTHER)
    response = await talk.create(tools=[WEATHER, TIME], tool_choice=choice)
    shown = talk.shown.split("<tool_call>")[0] if "<tool_call>" in talk.shown else "null"
    assert [tool["function"]["name"] for tool in json.loads(shown) or []] == (names or [])
    told = response.tool_choice if isinstance(response.tool_choice, str) else response.tool_choice.to_dict()
    assert told == choice
    constraint = talk.engine.asked[-1].context.params.constraint
    assert (constraint is not None) == (names is not None)


async def test_an_answer_of_a_form(talk: Talk) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    talk.answers('{"a": 5}')
    response = await talk.create(text={"format": form, "verbosity": "medium"})
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.to_dict() == form
    constraint = talk.engine.asked[-1].context.params.constraint
    assert json.loads(constraint.source) == schema
    await talk.create(text={"format": {"type": "json_object"}})
    assert json.loads(talk.engine.asked[-1].context.params.constraint.source) == {"type": "object"}


async def test_an_answer_of_a_form_beside_tools(talk: Talk) -> None:
    """For agents that end with a typed result."""
    form: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    for answer, kind in (('{"a": 5}', "message"), (CALL, "function_call")):
        talk.answers(answer)
        response = await talk.create(tools=[WEATHER], text={"format": form})
        assert [item.type for item in response.output] == [kind]
        assert "document: %json" in talk.engine.asked[-1].context.params.constraint.source


async def test_log_probabilities(talk: Talk) -> None:
    response = await talk.create(include=LOGPROBS, top_logprobs=2)
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(token.token for token in part.logprobs[:-1]) == "Hello!"
    assert [len(token.top_logprobs) for token in part.logprobs] == [2] * 7


async def test_an_answer_that_is_cut(talk: Talk) -> None:
    response = await talk.create(max_output_tokens=3)
    assert (response.status, response.output_text) == ("incomplete", "Hel")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in response.output if item.type == "message"] == ["incomplete"]
    talk.answers(CALL)
    response = await talk.create(tools=[WEATHER], max_output_tokens=len(CALL.encode()) - 20)
    [call] = response.output
    assert call.type == "function_call"
    assert (call.status, call.arguments[:10]) == ("incomplete", '{"city": "')
    response = await talk.create(tools=[WEATHER], max_output_tokens=len(CALL.encode()) - 3)
    [call] = response.output
    assert call.type == "function_call"
    assert (response.status, call.status) == ("incomplete", "completed")  # its arguments are complete
    talk.answers(f"{CALL[: CALL.index('}')]}STOPCHAT")
    response = await talk.create(tools=[WEATHER])
    [call] = response.output
    assert call.type == "function_call"
    assert (response.status, call.status) == ("completed", "incomplete")


async def test_an_answer_without_a_word(talk: Talk) -> None:
    talk.answers("")
    response = await talk.create()
    assert (response.status, response.output_text, len(response.output)) == ("completed", "", 1)


async def test_the_oldest_turns_may_be_left_out(talk: Talk) -> None:
    """As few turns as necessary, and no result of a call without the call."""
    turn: list[Any] = [
        {"role": "user", "content": "a" * 900},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "b" * 100},
    ]
    items = [{"role": "system", "content": "Rules."}, *turn * 6, {"role": "user", "content": "Hi"}]
    with pytest.raises(openai.BadRequestError) as refused:
        await talk.create(input=items)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    response = await talk.create(input=items, truncation="auto", max_output_tokens=100)
    assert response.status == "completed"
    assert talk.shown.count("[user] a") == 3
    assert talk.shown.startswith("[system] Rules.[user] aaa")
    assert talk.shown.endswith("[user] Hi")
    with pytest.raises(openai.BadRequestError, match="4096 tokens"):
        await talk.create(input="a" * 5000, truncation="auto")


@pytest.mark.matrix(13)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "templates"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search' are not supported"),
        ({"tools": [WEATHER, {"type": "mcp", "server_label": "l"}]}, "tools[1]", "'mcp'"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", "'file_search'"),
        ({"tool_choice": "required"}, "tool_choice", "it needs 'tools'"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "no tool 'x'"),
        (
            {
                "tools": [TIME],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
            },
            "tool_choice.tools",
            "no tool 'x'",
        ),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "'json_schema'"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"uniqueItems": True}, "strict": True}}},
            "text.format",
            "uniqueItems",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "'include'"),
        ({"background": True, "store": False}, "background", "must be stored"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "'stream'"),
        ({"temperature": -1}, "temperature", ""),
        ({"max_output_tokens": 0}, "max_output_tokens", ""),
        ({"max_output_tokens": 10**6}, "input", "4096 tokens"),
        ({"input": []}, "input", "it is empty"),
        ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input[0]", "'web_search_call' is not supported"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'input_image'",
        ),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", ""),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "no earlier call 'c'",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 5}]},
            "input[0].arguments",
            "valid string",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "not found"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "'resp_1' not found"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
        ({"truncation": "sometimes"}, "truncation", "'auto'"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(talk: Talk, fields: Any, param: str, words: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await talk.client.responses.create(model="fake", input="Hi", extra_body=fields)
    assert refused.value.status_code in (400, 404)
    assert (refused.value.param, words in refused.value.message) == (param, True), refused.value.message


async def test_our_own_fields(talk: Talk) -> None:
    own: dict[str, Any] = {"seed": 5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5, "ignore_eos": True}
    answer = await talk.client.responses.with_raw_response.create(
        model="fake", input="Hi", extra_body=own | {"mood": 1, "chat_template_kwargs": {"note": "!"}, "cache_salt": "s"}
    )
    [asked] = talk.engine.asked
    assert {name: getattr(asked.context.params, name) for name in own} == own
    assert asked.context.cache_salt == "s"
    assert talk.shown == "[user] Hi!"
    assert answer.headers["x-plimsoll-ignored"] == "mood"


async def test_tokens_are_counted(talk: Talk) -> None:
    """The tokens that the model would read, including earlier turns."""
    first = await talk.create()
    fields: Any = {"input": "And?", "instructions": "Be kind.", "previous_response_id": first.id, "tools": [WEATHER]}
    counted = await talk.client.responses.input_tokens.count(model="fake", **fields)
    assert counted.object == "response.input_tokens"
    assert len(talk.engine.asked) == 1
    response = await talk.create(**fields)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="'resp_1' not found"):
        await talk.client.responses.input_tokens.count(model="fake", previous_response_id="resp_1", input="Hi")


async def test_an_engine_that_cannot_go_on(talk: Talk) -> None:
    talk.engine.error = "broken"
    with pytest.raises(openai.InternalServerError, match="broken"):
        await talk.create()


async def test_a_client_that_goes_away_ends_its_request(talk: Talk) -> None:
    talk.engine.pause()
    asking = asyncio.create_task(talk.create())
    await talk.engine.until(lambda: bool(talk.engine.running))
    asking.cancel()
    await talk.engine.until(lambda: not talk.engine.running)
    assert len(talk.engine.aborted) == 1


async def test_the_client_that_waits(talk: Talk) -> None:
    """The synchronous client."""

    def ask() -> tuple[str, str, int]:
        with openai.OpenAI(base_url=f"{talk.running.url}/v1", api_key="none", max_retries=0) as client:
            first = client.responses.create(model="fake", input="Hi")
            with client.responses.stream(model="fake", input="And?", previous_response_id=first.id) as stream:
                final = stream.get_final_response()
            items = client.responses.input_items.list(final.id)
            return first.output_text, final.output_text, len(list(items))

    assert await asyncio.to_thread(ask) == ("Hello!", "Hello!", 3)
