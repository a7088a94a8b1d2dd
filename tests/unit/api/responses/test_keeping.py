"""Stored responses: found only by their owner, continued, listed and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from plimsoll_runtime.options import ResponseBounds

if TYPE_CHECKING:
    from tests.unit.api.responses.conftest import Talk

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_conversation_goes_on(talk: Talk) -> None:
    """Instructions apply to one turn only."""
    first = await talk.create(input="One", instructions="Be kind.")
    second = await talk.create(input=[{"role": "user", "content": "Two"}], previous_response_id=first.id)
    third = await talk.create(input="Three", previous_response_id=second.id, instructions="Be brief.")
    assert talk.shown == ("[system] Be brief.[user] One[assistant] Hello![user] Two[assistant] Hello![user] Three")
    assert third.previous_response_id == second.id
    await talk.create(input="Another way", previous_response_id=first.id)
    assert talk.shown == "[user] One[assistant] Hello![user] Another way"


async def test_what_it_was_made_from_is_listed(talk: Talk) -> None:
    first = await talk.create(input="One")
    second = await talk.create(
        input=[
            {"role": "developer", "content": "Rules."},
            {"role": "user", "content": [{"type": "input_text", "text": "Two"}]},
        ],
        previous_response_id=first.id,
    )
    items = talk.client.responses.input_items
    everything = (await items.list(second.id, order="asc")).data
    assert [item.role for item in everything if item.type == "message"] == ["user", "assistant", "developer", "user"]
    assert everything[1] == first.output[0]
    ids = [item.id for item in everything]
    assert len(set(ids)) == 4
    newest = await items.list(second.id)
    assert [item.id for item in newest.data] == ids[::-1]
    assert (newest.first_id, newest.last_id, newest.has_more) == (ids[3], ids[0], False)
    page = await items.list(second.id, limit=3, order="asc")
    assert ([item.id for item in page.data], page.has_more) == (ids[:3], True)
    assert [item.id async for item in page] == ids
    rest = await items.list(second.id, after=ids[2], order="asc")
    assert ([item.id for item in rest.data], rest.has_more) == (ids[3:], False)
    empty = await items.list(second.id, after=ids[3], order="asc")
    assert (empty.data, empty.has_more) == ([], False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=msg_1", "after"),
    ],
)
async def test_a_list_that_makes_no_sense(talk: Talk, query: str, param: str) -> None:
    response = await talk.create()
    with pytest.raises(openai.BadRequestError) as refused:
        await talk.client.get(f"/responses/{response.id}/input_items?{query}", cast_to=object)
    assert refused.value.param == param


async def test_items_are_referred_to(talk: Talk) -> None:
    first = await talk.create(input="One")
    listed = (await talk.client.responses.input_items.list(first.id)).data
    references: Any = [{"type": "item_reference", "id": item.id} for item in (*listed, *first.output)]
    second = await talk.create(input=[*references, {"role": "user", "content": "Two"}])
    assert talk.shown == "[user] One[assistant] Hello![user] Two"
    await talk.client.responses.delete(first.id)
    await talk.create(input="Three", previous_response_id=second.id)
    assert talk.shown == "[user] One[assistant] Hello![user] Two[assistant] Hello![user] Three"
    with pytest.raises(openai.NotFoundError) as refused:
        await talk.create(input=references)
    assert (refused.value.code, refused.value.param) == ("item_not_found", "input[0]")


async def test_what_is_forgotten_is_gone(talk: Talk) -> None:
    first = await talk.create()
    second = await talk.create(previous_response_id=first.id)
    await talk.client.responses.delete(first.id)
    for method in (
        talk.client.responses.retrieve,
        talk.client.responses.delete,
        talk.client.responses.cancel,
        talk.client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            await method(first.id)
        assert refused.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError, match="Send the conversation") as gone:
        await talk.create(previous_response_id=second.id)
    assert gone.value.code == "previous_response_not_found"
    assert (await talk.client.responses.retrieve(second.id)).id == second.id


async def test_nothing_is_kept_of_what_is_not_to_be(talk: Talk) -> None:
    response = await talk.create(store=False)
    with pytest.raises(openai.NotFoundError):
        await talk.client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        await talk.create(previous_response_id=response.id)


@pytest.mark.parametrize("shared", [False, True])
async def test_each_key_has_its_own(run_server: Any, shared: bool) -> None:
    """Also if they share cached prefixes."""
    async with run_server(api_keys=("one", "other"), share_prefix_cache=shared) as running:
        one, other = running.openai("one"), running.openai("other")
        response = await one.responses.create(model="fake", input="Hi")
        running.engine.pause()
        background = await one.responses.create(model="fake", input="Hi", background=True)
        for found in (response, background):
            for method in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await method(found.id)
            with pytest.raises(openai.BadRequestError):
                await other.responses.create(model="fake", input="Hi", previous_response_id=found.id)
        reference: Any = {"type": "item_reference", "id": response.output[0].id}
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="fake", input=[reference])
        running.engine.resume()
        assert (await one.responses.retrieve(response.id)).id == response.id


@pytest.mark.usefixtures("server")
async def test_a_file_outlives_the_server(run_server: Any, tmp_path: Path) -> None:
    store = tmp_path / "responses"
    async with run_server(response_store=store) as running:
        first = await running.openai().responses.create(model="fake", input="One")
        stream = await running.openai().responses.create(model="fake", input="Hi", background=True, stream=True)
        seen = [event async for event in stream]
    async with run_server(response_store=store) as running:
        client = running.openai()
        assert await client.responses.retrieve(first.id) == first
        await client.responses.create(model="fake", input="Two", previous_response_id=first.id)
        shown = bytes(token for token in running.engine.asked[-1].prompt_token_ids if token < 256).decode()
        assert shown == "[user] One[assistant] Hello![user] Two"
        again = await client.responses.retrieve(seen[-1].response.id, stream=True, starting_after=3)
        assert [event async for event in again] == seen[4:]


async def test_what_does_not_fit_says_that_it_is_not_kept(run_server: Any) -> None:
    async with run_server(response_bounds=ResponseBounds(bytes=3000)) as running:
        client = running.openai()
        small = await client.responses.create(model="fake", input="Hi")
        assert small.to_dict()["store"] is True
        large = await client.responses.create(model="fake", input="a" * 3000)
        assert large.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(large.id)
        with pytest.raises(openai.InternalServerError, match="cannot be stored") as refused:
            await client.responses.create(model="fake", input="a" * 3000, background=True)
        assert refused.value.status_code == 507
        running.engine.answer = b"a" * 3000
        background = await client.responses.create(model="fake", input="Hi", background=True)
        await running.engine.until(lambda: not running.engine.running)
        async with asyncio.timeout(60):
            while (found := await client.responses.retrieve(background.id)).status in ("queued", "in_progress"):
                continue
        assert (found.status, found.error.message) == (
            "failed",
            "The response cannot be stored; the store is full or cannot be written.",
        )
        assert running.server.state.in_flight == 0


async def test_the_least_recently_used_goes_first(run_server: Any) -> None:
    async with run_server(response_bounds=ResponseBounds(count=2)) as running:
        client = running.openai()
        first, second = [await client.responses.create(model="fake", input="Hi") for _ in range(2)]
        third = await client.responses.create(model="fake", input="Hi", previous_response_id=first.id)
        assert (await client.responses.retrieve(first.id)).id == first.id
        assert (await client.responses.retrieve(third.id)).id == third.id
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)


async def test_a_place_is_what_a_gateway_says(talk: Talk) -> None:
    """No other value is accepted, because it becomes part of an id."""
    for said, place in (("0123456789ab", "0123456789ab"), ("../../etc", "0" * 12), ("ABCDEF012345", "0" * 12)):
        async with talk.running.http() as http:
            body = {"model": "fake", "input": "Hi"}
            answer = await http.post("/v1/responses", json=body, headers={"x-plimsoll-place": said})
        assert answer.json()["id"].startswith(f"resp_{place}")
        assert answer.json()["output"][0]["id"].startswith(f"msg_{place}")


@pytest.mark.parametrize("in_file", [False, True])
async def test_one_keys_responses_do_not_push_out_anothers(run_server: Any, tmp_path: Path, in_file: bool) -> None:
    store = tmp_path / "responses" if in_file else None
    async with run_server(
        api_keys=("quiet", "busy"), response_bounds=ResponseBounds(count=4), response_store=store
    ) as running:
        quiet, busy = running.openai("quiet"), running.openai("busy")
        mine = [await quiet.responses.create(model="fake", input="Hi") for _ in range(2)]
        theirs = [await busy.responses.create(model="fake", input="Hi") for _ in range(7)]
        for response in (*mine, *theirs[-2:]):
            client = quiet if response in mine else busy
            assert await client.responses.retrieve(response.id) == response
        for response in theirs[:-2]:
            with pytest.raises(openai.NotFoundError):
                await busy.responses.retrieve(response.id)
