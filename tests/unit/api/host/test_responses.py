"""Responses of sleeping models: streams get comments while they wait, background responses wait by themselves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from plimsoll_runtime.residency.errors import Refused


async def blocks(hosting: Any, started: asyncio.Future[int]) -> list[str]:
    """Return the blocks of a stream; `started` gets its status when it starts."""
    async with hosting.http() as http:
        body = {"model": "m", "input": "a", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as response:
            started.set_result(response.status_code)
            text: str = (await response.aread()).decode()
            return text.split("\n\n")[:-1]


@pytest.mark.parametrize("wakes", [True, False])
async def test_a_stream_waits_for_its_model(hosting: Any, wakes: bool) -> None:
    model = hosting.host.add("team/m")
    started = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(blocks(hosting, started))
    assert await started == 200
    if wakes:
        hosting.host.rouse(model)
    else:
        hosting.host.refuse(model, Refused("load_failed", "team/m could not be loaded", 5.0))
    said = await reading
    events = [block.split("\n") for block in said if not block.startswith(":")]
    assert len(events) < len(said)
    names = [name.removeprefix("event: ") for name, _ in events]
    data = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    if wakes:
        assert (names[0], names[-1]) == ("response.created", "response.completed")
        assert data[-1]["response"]["model"] == "m"
    else:
        assert names == ["error"]
        assert data[0]["code"] == "load_failed"


async def ended(client: openai.AsyncOpenAI, response: str) -> Any:
    async with asyncio.timeout(60):
        while (found := await client.responses.retrieve(response)).status in ("queued", "in_progress"):
            continue
    return found


async def test_the_background_waits_by_itself(hosting: Any) -> None:
    """Errors that are known immediately are returned immediately."""
    model = hosting.host.add("team/m")
    client = hosting.openai()
    response = await client.responses.create(model="m", input="Hi", background=True)
    assert (response.status, model.waiting) == ("queued", 1)
    cancelled = await client.responses.create(model="m", input="Hi", background=True)
    assert (await client.responses.cancel(cancelled.id)).status == "cancelled"
    await hosting.host.until(lambda: model.waiting == 1)
    hosting.host.rouse(model)
    final = await ended(client, response.id)
    assert (final.status, final.output_text) == ("completed", "Hello!")
    await hosting.host.until(lambda: model.active == 0)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="other", input="Hi", background=True)


async def test_what_cannot_be_loaded_has_failed(hosting: Any) -> None:
    model = hosting.host.add("team/m")
    client = hosting.openai()
    response = await client.responses.create(model="m", input="Hi", background=True)
    hosting.host.refuse(model, Refused("load_failed", "team/m could not be loaded", 5.0))
    final = await ended(client, response.id)
    assert (final.status, final.error.message) == ("failed", "Team/m could not be loaded.")
    with pytest.raises(openai.InternalServerError, match="could not be loaded"):
        await client.responses.create(model="m", input="Hi", background=True)
