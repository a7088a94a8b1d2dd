"""Responses through a real gateway with keys, in front of two servers: each is found at the server that made it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from gateway_support.keys import CREDENTIAL, Keys
from port_support.held import held_port

from plimsoll_gateway.routing.response_affinity import place_of
from plimsoll_runtime.api.responses import errors
from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Front:
    """A gateway, and the servers behind it by the ids of their replicas."""

    url: str
    table: Path
    keys: Keys
    servers: dict[str, Any] = field(default_factory=dict)
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    def client(self, name: str = "a") -> openai.AsyncOpenAI:
        made = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.keys.texts[name], max_retries=0, timeout=120)
        self.clients.append(made)
        return made

    def show(self, *replicas: str) -> None:
        """Replace the routing table's file atomically."""
        shown = [{"id": name, "url": self.servers[name].url, "ready": True} for name in replicas]
        model = {"namespace": "n", "name": "m", "servedNames": ["fake"], "created": "2026-01-01T00:00:00Z"}
        fresh = self.table.with_suffix(".new")
        fresh.write_text(json.dumps({"models": [model | {"message": "", "replicas": shown}]}))
        fresh.replace(self.table)

    async def until(self, status: int, path: str) -> None:
        """Wait until the gateway has read the table."""
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=self.url, headers=self.keys.header("a")) as http:
            while True:
                try:
                    if (await http.get(path)).status_code == status:
                        return
                except httpx.TransportError:
                    continue

    def maker(self, response: str) -> Any:
        """Return the server that made a response, by its id."""
        [found] = [server for name, server in self.servers.items() if response.startswith(f"resp_{place_of(name)}")]
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    folder = tmp_path_factory.mktemp("gateway")
    keys, table = Keys(folder), folder / "table.json"
    for name in ("a", "b"):
        keys.add(name)
    async with AsyncExitStack() as stack:
        port = stack.enter_context(held_port())
        front = Front(f"http://127.0.0.1:{port}", table, keys)
        for name in ("one", "two"):
            server = running_server(tokenizer, gateway_tokens=(CREDENTIAL,))
            front.servers[name] = await stack.enter_async_context(server)
        front.show("one", "two")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "plimsoll_gateway", "--table", str(table), "--lame-duck-seconds", "0"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--keys", str(keys.folder), "--gateway-token-file", str(keys.token)),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await front.until(200, "/health")
            yield front
        finally:
            for client in front.clients:
                await client.close()
            process.kill()
            await process.wait()


@pytest.fixture
def front(standing: Front) -> Front:
    """The module's gateway, with engines in the initial state. A test's loop must be the module's."""
    for server in standing.servers.values():
        server.engine.reset()
    return standing


async def test_everything_goes_where_the_response_is(front: Front) -> None:
    client, other = front.client("a"), front.client("b")
    made = [await client.responses.create(model="fake", input=f"Hi {number}") for number in range(8)]
    assert len({id(front.maker(response.id)) for response in made}) == 2
    for response in made:
        assert await client.responses.retrieve(response.id) == response
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(response.id)
        second = await client.responses.create(model="fake", input="And?", previous_response_id=response.id)
        assert front.maker(second.id) is front.maker(response.id)
        reference: Any = {"type": "item_reference", "id": second.output[0].id}
        third = await client.responses.create(model="fake", input=[reference])
        assert front.maker(third.id) is front.maker(response.id)
        assert len((await client.responses.input_items.list(second.id)).data) == 3
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)


async def test_streams_and_the_background(front: Front) -> None:
    client = front.client()
    async with client.responses.stream(model="fake", input="Hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "Hello!"
    followed = await client.responses.create(model="fake", input="Hi", background=True, stream=True)
    seen = [event async for event in followed]
    assert seen[-1].type == "response.completed"
    again = await client.responses.retrieve(seen[-1].response.id, stream=True, starting_after=2)
    assert [event async for event in again] == seen[3:]
    for server in front.servers.values():
        server.engine.pause()
    running = await client.responses.create(model="fake", input="Hi", background=True)
    assert running.status == "queued"
    assert (await client.responses.cancel(running.id)).status == "cancelled"


async def test_what_a_replica_took_with_it_is_gone(front: Front) -> None:
    client = front.client()
    response = await client.responses.create(model="fake", input="Hi")
    [left] = [name for name, server in front.servers.items() if server is not front.maker(response.id)]
    front.show(left)
    await front.until(404, f"/v1/responses/{response.id}")
    with pytest.raises(openai.NotFoundError, match="The replica that stored this response is gone"):
        await client.responses.create(model="fake", input="Hi", previous_response_id=response.id)
    assert (await client.responses.create(model="fake", input="Hi")).status == "completed"
    front.show("one", "two")
    await front.until(200, f"/v1/responses/{response.id}")
    assert await client.responses.retrieve(response.id) == response


async def test_a_replica_that_ends_fails_its_streams(front: Front) -> None:
    client = front.client()
    for server in front.servers.values():
        server.engine.answer = b"a" * 3000
    events = []
    async for event in await client.responses.create(model="fake", input="Hi", stream=True):
        events.append(event)
        if event.type == "response.created":
            front.maker(event.response.id).engine.die()
    assert events[-1].type == "response.failed"
    assert "engine died" in str(events[-1].response.error)


async def test_both_sides_write_ids_the_same_way() -> None:
    response = errors.response_id({errors.PLACE_HEADER: place_of("r")})
    assert re.fullmatch(r"resp_[0-9a-f]{44}", response)
    assert response.startswith(f"resp_{place_of('r')}")
    for kind in ("msg", "fc", "fco", "rs"):
        assert errors.response_of_item(errors.item_id(kind, response, 4097)) == response
