"""The events of a response's stream: of the client's types, numbered, and adding up to the response."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from pydantic import BaseModel

from plimsoll_runtime.api.http.errors import dialect_of, unavailable
from plimsoll_runtime.engine.protocol.messages import RequestOutput

from .conftest import EVENTS

if TYPE_CHECKING:
    from tests.unit.api.responses.conftest import Talk

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
DELTA = "response.output_text.delta"


def kinds(events: list[Any]) -> list[str]:
    """Return the types of events, with repetitions in a row removed."""
    found: list[str] = []
    for event in events:
        if not found or found[-1] != event.type:
            found.append(event.type)
    return found


async def test_words(talk: Talk) -> None:
    events = await talk.stream()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        DELTA,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    first, last = events[0].response, events[-1].response
    assert (first.status, first.output, first.usage) == ("in_progress", [], None)
    assert (last.status, last.output_text) == ("completed", "Hello!")
    assert "".join(event.delta for event in events if event.type == DELTA) == "Hello!"
    added, done = (event.item for event in events if event.type.startswith("response.output_item"))
    assert (added.status, added.content, done) == ("in_progress", [], last.output[0])
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {done.id}
    assert await talk.client.responses.retrieve(last.id) == last
    assert (last.usage.input_tokens, last.usage.output_tokens) == (9, 7)


async def test_words_and_calls(talk: Talk) -> None:
    talk.answers(f"I look.{CALL}\n{CALL}")
    events = await talk.stream(tools=[WEATHER])
    last = events[-1].response
    assert [item.type for item in last.output] == ["message", "function_call", "function_call"]
    for index, item in enumerate(last.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert own[-1].item == item
        if item.type == "function_call":
            assert (own[0].item.name, own[0].item.arguments, own[0].item.call_id) == ("get_weather", "", item.call_id)
            deltas = "".join(event.delta for event in own if event.type == "response.function_call_arguments.delta")
            assert json.loads(deltas) == {"city": "Köln"}
            assert own[-2].type == "response.function_call_arguments.done"
            assert own[-2].arguments == item.arguments == deltas
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_clients_own_helper_adds_it_up(talk: Talk) -> None:
    class City(BaseModel):
        city: str

    talk.answers('{"city": "Köln"}')
    async with talk.client.responses.stream(model="fake", input="Hi", text_format=City) as stream:
        seen = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_parsed == City(city="Köln")
    assert seen[-1].type == "response.completed"
    talk.answers(CALL)
    tool: Any = openai.pydantic_function_tool(City, name="get_weather")["function"]
    async with talk.client.responses.stream(model="fake", input="Hi", tools=[{"type": "function", **tool}]) as stream:
        final = await stream.get_final_response()
    [call] = final.output
    assert call.type == "function_call"
    assert call.parsed_arguments == {"city": "Köln"}


async def test_log_probabilities(talk: Talk) -> None:
    events = await talk.stream(include=["message.output_text.logprobs"], top_logprobs=1)
    told = [token for event in events if event.type == DELTA for token in event.logprobs]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [token.token for token in told] == [token.token for token in done.logprobs]
    assert "".join(token.token for token in told[:-1]) == "Hello!"
    assert events[-1].response.output[0].content[0].logprobs[0].logprob == told[0].logprob


async def test_a_stream_that_is_cut(talk: Talk) -> None:
    events = await talk.stream(max_output_tokens=3)
    last = events[-1]
    assert (last.type, last.response.status, last.response.output_text) == ("response.incomplete", "incomplete", "Hel")


async def test_what_fails_first_has_its_status(talk: Talk) -> None:
    talk.engine.error = "broken"
    with pytest.raises(openai.InternalServerError, match="broken"):
        await talk.client.responses.create(model="fake", input="Hi", stream=True)


async def test_what_fails_later_ends_the_stream_as_failed(talk: Talk) -> None:
    talk.engine.error, talk.engine.error_after = "broken", 3
    events = await talk.stream()
    last = events[-1]
    assert (last.type, last.response.status, last.response.error.code) == ("response.failed", "failed", "server_error")
    assert "broken" in last.response.error.message
    [message] = last.response.output
    assert (message.status, message.content[0].text) == ("incomplete", "Hel")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (await talk.client.responses.retrieve(last.response.id)).status == "failed"


async def test_what_fails_before_there_is_a_response_is_an_error() -> None:
    """If the stream has started with comments, while its model was loaded."""
    said = dialect_of({"path": "/v1/responses"}).last_words(unavailable("It cannot be loaded."))
    name, data = said.decode().split("\n")
    event = EVENTS.validate_json(data.removeprefix("data: "))
    assert (name, event.type, event.code, event.sequence_number) == ("event: error", "error", "unavailable", 0)
    assert "It cannot be loaded." in event.message


async def test_time_that_is_up_ends_the_stream_as_failed(talk: Talk) -> None:
    """With the engine's deadline, which the body may set."""
    original = talk.engine._output

    def late(request: Any, turn: int, token_id: int, last: bool) -> Any:
        if turn == 2:
            return RequestOutput(request.request_id, finish_reason="deadline", error="its deadline passed")
        return original(request, turn, token_id, last)

    talk.engine._output = late
    try:
        events = await talk.stream(deadline=5.0)
    finally:
        del talk.engine._output
    assert events[-1].type == "response.failed"
    assert "deadline" in events[-1].response.error.message
    assert not talk.engine.running


async def test_a_client_that_goes_away_ends_its_request(talk: Talk) -> None:
    talk.engine.answer = b"a" * 3000
    stream = await talk.client.responses.create(model="fake", input="Hi", stream=True)
    async for event in stream:
        if event.type == DELTA:
            break
    response = next(iter(talk.engine.running))
    await stream.close()
    await talk.engine.until(lambda: response in talk.engine.aborted)


async def test_nothing_is_kept_unless_it_is_to_be(talk: Talk) -> None:
    kept = (await talk.stream())[-1].response
    fleeting = (await talk.stream(store=False))[-1].response
    assert (kept.to_dict()["store"], fleeting.to_dict()["store"]) == (True, False)
    assert (await talk.client.responses.retrieve(kept.id)).id == kept.id
    with pytest.raises(openai.NotFoundError):
        await talk.client.responses.retrieve(fleeting.id)


async def test_streams_at_once_do_not_mix(talk: Talk) -> None:
    streams = await asyncio.gather(*(talk.stream(input=str(number)) for number in range(8)))
    assert len({events[-1].response.id for events in streams}) == 8
    assert all(events[-1].response.output_text == "Hello!" for events in streams)
