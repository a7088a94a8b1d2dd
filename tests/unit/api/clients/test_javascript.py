"""OpenAI's JavaScript client, with Node: chats, streams, tools, responses, vectors, cancelled requests and errors."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import CLIENTS, HERE, HINT, WAYS, StandIn, run_client, standing_in

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
ARGUMENTS = '{"city": "Köln"}'


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not on this machine")
    if not (CLIENTS / "node_modules" / "openai").is_dir():
        pytest.skip(f"OpenAI's client for Node is {HINT}")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand_in(node: str, tokenizer: Tokenizer) -> AsyncIterator[StandIn]:
    async with standing_in(tokenizer) as running:
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


async def ask(node: str, step: str, url: str, vectors: str = "") -> Any:
    environment = {"CLIENTS": str(CLIENTS), "URL": url, "VECTORS": vectors}
    return await asyncio.to_thread(run_client, node, HERE / "smoke.mjs", step, **environment)


async def test_chats_whole_and_streamed(node: str, stand_in: StandIn, way: str) -> None:
    stand_in.answers("Grüße!")
    told = await ask(node, "chat", stand_in.ways.url(way))
    assert told["whole"] == told["text"] == told["final"] == "Grüße!"
    assert told["usage"][0] == told["usage"][1] == [len(stand_in.running.engine.asked[0].prompt_token_ids), 9]
    assert "fake" in told["models"]


async def test_tools_are_called_and_heard(node: str, stand_in: StandIn, way: str) -> None:
    stand_in.answers(CALL)
    told = await ask(node, "tools", stand_in.ways.url(way))
    assert told["call"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert told["streamed"] == ARGUMENTS
    assert told["heard"] == [{"city": "Köln"}] * 2
    assert told["results"] == ["rain"] * 2
    assert stand_in.shown.endswith("rain")


async def test_responses_go_on(node: str, stand_in: StandIn, way: str) -> None:
    stand_in.answers("Hello!")
    told = await ask(node, "responses", stand_in.ways.url(way))
    assert told == {"whole": "Hello!", "final": "Hello!", "kept": "Hello!", "ended": True}
    assert stand_in.shown == "HiHello!And?"


async def test_texts_become_vectors(node: str, tokenizer: Tokenizer, way: str) -> None:
    async with standing_in(tokenizer, pooling=PoolingInfo("embed", 4)) as vectors:
        plain, floats, encoded = await ask(node, "embeddings", vectors.ways.url(way), vectors.ways.url(way))
        numbers = vectors.running.engine.numbers
        assert plain == floats == [numbers([256, *b"Hi"]), numbers([256, *b"you"])]
    assert all(isinstance(each, str) for each in encoded)


async def test_what_is_broken_off_ends(node: str, stand_in: StandIn, way: str) -> None:
    stand_in.answers("a" * 3000)
    asking = asyncio.create_task(ask(node, "abort", stand_in.ways.url(way)))
    await stand_in.running.engine.until(lambda: stand_in.running.engine.aborted)
    assert 3 <= (await asking)["chunks"] < 3000, "what had come by then is still read"
    assert not stand_in.running.engine.running


async def test_errors_are_told(node: str, stand_in: StandIn, way: str) -> None:
    stand_in.answers("Hello!")
    told = await ask(node, "errors", stand_in.ways.url(way))
    assert told == [
        ["NotFoundError", 404, "model"],
        ["BadRequestError", 400, "top_p"],
        ["BadRequestError", 400, "messages"],
    ]
