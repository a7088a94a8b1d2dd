"""Responses, as OpenAI's own client asks for them and reads them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_text(running: Any) -> None:
    response = await running.openai().responses.create(model="alias", input="Hi", instructions="Be kind.")
    assert (response.status, response.output_text, response.model) == ("completed", "Hello!", "fake")
    [message] = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert response.usage.output_tokens == 7
    [asked] = running.engine.asked
    text = bytes(token for token in asked.prompt_token_ids if token < 256).decode()
    assert "Be kind." in text
    assert text.endswith("Hi")


async def test_a_stream(running: Any) -> None:
    async with running.openai().responses.stream(model="fake", input="Hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "Hello!"
    print([e.type for e in events])


async def test_a_conversation(running: Any) -> None:
    client = running.openai()
    first = await client.responses.create(model="fake", input="Hi")
    second = await client.responses.create(model="fake", input="And?", previous_response_id=first.id)
    text = bytes(t for t in running.engine.asked[-1].prompt_token_ids if t < 256).decode()
    assert "Hello!" in text
    assert second.previous_response_id == first.id
    items = await client.responses.input_items.list(second.id)
    assert [item.role async for item in items] == ["user", "assistant", "user"]
    again = await client.responses.retrieve(first.id)
    assert again == first
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


async def test_in_the_background(running: Any) -> None:
    client = running.openai()
    running.engine.pause()
    response = await client.responses.create(model="fake", input="Hi", background=True)
    assert response.status == "queued"
    assert (await client.responses.retrieve(response.id)).status == "queued"
    gone = await client.responses.cancel(response.id)
    assert gone.status == "cancelled"
    assert (await client.responses.retrieve(response.id)).status == "cancelled"
