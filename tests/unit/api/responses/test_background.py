"""Background responses: retrieved, followed, cancelled, and aborted with the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from .conftest import EVENTS, events_of

if TYPE_CHECKING:
    from tests.unit.api.responses.conftest import Talk

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ended(client: openai.AsyncOpenAI, response: str) -> Response:
    """Wait for the end of a response by polling, as clients do."""
    async with asyncio.timeout(60):
        while True:
            found = await client.responses.retrieve(response)
            if found.status not in ("queued", "in_progress"):
                return found


async def test_it_is_polled_until_it_has_ended(talk: Talk) -> None:
    talk.engine.pause()
    response = await talk.create(background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    found = await talk.client.responses.retrieve(response.id)
    assert found.status == "queued"
    talk.engine.resume()
    final = await ended(talk.client, response.id)
    assert (final.status, final.output_text) == ("completed", "Hello!")
    assert final.usage is not None
    assert final.usage.output_tokens == 7


async def test_it_runs_on_when_its_client_is_gone(talk: Talk) -> None:
    talk.engine.pause()
    stream = await talk.client.responses.create(model="fake", input="Hi", background=True, stream=True)
    created = await anext(aiter(stream))
    assert created.type == "response.created"
    await stream.close()
    talk.engine.resume()
    assert (await ended(talk.client, created.response.id)).output_text == "Hello!"
    assert talk.engine.aborted == []


async def test_its_stream_is_followed_from_anywhere(talk: Talk) -> None:
    """All clients see the same events, while it runs and after its end."""
    stream = await talk.client.responses.create(model="fake", input="Hi", background=True, stream=True)
    seen = [event async for event in stream]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    last = seen[-1]
    assert last.type == "response.completed"
    for after in (-1, 0, 5, len(seen) - 2, len(seen) - 1, 10_000):
        again = await follow(talk, last.response.id, after)
        assert again == [EVENTS.validate_python(event.to_dict()) for event in seen[after + 1 :]]


async def follow(talk: Talk, response: str, after: int) -> list[Any]:
    query = {"stream": "true"} | ({} if after < 0 else {"starting_after": str(after)})
    async with talk.running.http() as http:
        return events_of(await http.get(f"/v1/responses/{response}", params=query))


async def test_several_follow_it_while_it_runs(talk: Talk) -> None:
    talk.engine.pause()
    first = await talk.client.responses.create(model="fake", input="Hi", background=True, stream=True)
    created = await anext(aiter(first))
    assert created.type == "response.created"
    others = [asyncio.create_task(follow(talk, created.response.id, after)) for after in (-1, 0, 1)]
    talk.engine.resume()
    rest = [event async for event in first]
    for after, other in enumerate(others):
        events = await other
        assert [event.sequence_number for event in events] == list(range(after, len(rest) + 1))


async def test_the_clients_helper_goes_on_with_it(talk: Talk) -> None:
    stream = await talk.client.responses.create(model="fake", input="Hi", background=True, stream=True)
    response = [event async for event in stream][-1].response
    async with talk.client.responses.stream(response_id=response.id, starting_after=4) as again:
        events = [event async for event in again]
        final = await again.get_final_response()
    assert events[0].sequence_number == 5
    assert final.output_text == "Hello!"


async def test_one_without_events_cannot_be_followed(talk: Talk) -> None:
    plain = await talk.create()
    background = await talk.create(background=True)
    await ended(talk.client, background.id)
    for response in (plain, background):
        with pytest.raises(openai.BadRequestError, match="'background' and 'stream'"):
            await talk.client.responses.retrieve(response.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="'stream=true'"):
        await talk.client.get(f"/responses/{plain.id}?starting_after=3", cast_to=Response)


async def test_it_is_cancelled(talk: Talk) -> None:
    talk.engine.answer = b"a" * 2000
    stream = await talk.client.responses.create(model="fake", input="Hi", background=True, stream=True)
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta" and len(seen) > 20:
            break
    response = seen[0].response.id
    cancelled = await talk.client.responses.cancel(response)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith("a")
    assert not talk.engine.running
    assert await talk.client.responses.retrieve(response) == cancelled
    assert await talk.client.responses.cancel(response) == cancelled
    rest = [event async for event in stream]
    again = await follow(talk, response, -1)
    assert [event.sequence_number for event in again] == list(range(len(seen) + len(rest)))
    assert not {event.type for event in again} & {"response.completed", "response.failed", "response.incomplete"}


async def test_only_what_runs_in_the_background_is_cancelled(talk: Talk) -> None:
    response = await talk.create()
    with pytest.raises(openai.BadRequestError, match="'background': true"):
        await talk.client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError):
        await talk.client.responses.cancel("resp_1")


async def test_what_is_deleted_runs_no_more(talk: Talk) -> None:
    talk.engine.pause()
    response = await talk.create(background=True)
    await talk.engine.until(lambda: bool(talk.engine.running))
    await talk.client.responses.delete(response.id)
    assert not talk.engine.running
    with pytest.raises(openai.NotFoundError):
        await talk.client.responses.retrieve(response.id)


async def test_a_conversation_waits_for_its_end(talk: Talk) -> None:
    talk.engine.pause()
    response = await talk.create(background=True)
    with pytest.raises(openai.BadRequestError, match="has not ended") as refused:
        await talk.create(previous_response_id=response.id)
    assert refused.value.param == "previous_response_id"
    talk.engine.resume()
    await ended(talk.client, response.id)
    assert (await talk.create(previous_response_id=response.id)).status == "completed"


async def test_what_is_refused_is_not_kept(talk: Talk) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await talk.create(input="a" * 5000, background=True)
    assert refused.value.param == "input"
    assert not talk.engine.running
    with pytest.raises(openai.NotFoundError):
        await talk.create(model="other", background=True)


async def test_what_fails_says_so(talk: Talk) -> None:
    for stream in (False, True):
        talk.engine.error, talk.engine.error_after = "broken", 3
        if stream:
            events = [
                event
                async for event in await talk.client.responses.create(
                    model="fake", input="Hi", background=True, stream=True
                )
            ]
            assert events[-1].type == "response.failed"
            response = events[-1].response.id
        else:
            response = (await talk.create(background=True)).id
        final = await ended(talk.client, response)
        assert (final.status, final.output_text) == ("failed", "Hel")
        assert final.error is not None
        assert (final.error.code, "broken" in final.error.message) == ("server_error", True)


async def test_it_counts_in_the_metrics_and_in_what_a_server_waits_for(run_server: Any) -> None:
    async with run_server() as running:
        client = running.openai()
        running.engine.pause()
        response = await client.responses.create(model="fake", input="Hi", background=True)
        await running.engine.until(lambda: bool(running.engine.running))
        assert running.server.state.in_flight == 1
        running.server.stop()
        running.engine.resume()
        assert await running.ended == 0
        assert running.engine.aborted == []
        assert response.status == "queued"


async def test_a_server_that_stops_breaks_off_what_does_not_end(run_server: Any, tmp_path: Path) -> None:
    """The next server reports it as failed."""
    store = tmp_path / "responses"
    async with run_server(response_store=store, drain_seconds=0.0) as running:
        running.engine.pause()
        response = await running.openai().responses.create(model="fake", input="Hi", background=True)
        await running.engine.until(lambda: bool(running.engine.running))
        running.server.stop()
        await running.ended
    async with run_server(response_store=store) as again:
        found = await again.openai().responses.retrieve(response.id)
        assert (found.status, found.error.code) == ("failed", "server_error")
        assert "stopped" in found.error.message


async def test_what_a_crash_broke_off_has_failed(run_server: Any, tmp_path: Path) -> None:
    """Only the record of its start exists."""
    store = tmp_path / "responses"
    async with run_server(response_store=store) as running:
        running.engine.pause()
        response = await running.openai().responses.create(model="fake", input="Hi", background=True)
        lost = (tmp_path / "responses").read_bytes(), (tmp_path / "responses-wal").read_bytes()
    (tmp_path / "lost").write_bytes(lost[0])
    (tmp_path / "lost-wal").write_bytes(lost[1])
    async with run_server(response_store=tmp_path / "lost") as again:
        client = again.openai()
        found = await client.responses.retrieve(response.id)
        assert (found.status, "stopped" in found.error.message) == ("failed", True)
        assert (await client.responses.cancel(response.id)).status == "failed"
        await client.responses.delete(response.id)


async def test_metrics_tell_of_its_tokens(run_server: Any) -> None:
    async with run_server() as running:
        client = running.openai()
        response = await client.responses.create(model="fake", input="Hi", background=True)
        await ended(client, response.id)
        async with httpx.AsyncClient(base_url=running.url) as http:
            lines = (await http.get("/metrics")).text.splitlines()
    assert (
        'plimsoll_requests_total{code="200",endpoint="/v1/responses (background)",model="fake",namespace=""} 1.0'
        in lines
    )
    assert 'plimsoll_request_completion_tokens_sum{model="fake",namespace=""} 7.0' in lines
