"""One question to a model, through the gateway, with the answer written as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from plimsoll_runtime.local.talk.stream import AskError, Server, stream

LONGEST_ANSWER = 256
ROUTE_SECONDS = 15.0
POLL_SECONDS = 0.1


async def ask(
    session: aiohttp.ClientSession, server: Server, model: str, question: str, write: Callable[[str], None]
) -> None:
    """Send one streaming chat request; `write` gets the pieces of the answer. Raises AskError."""
    await _until_routed(session, server.url, model)
    async for chunk in stream(session, server, _request(model, question)):
        write(chunk.text)


def _request(model: str, question: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": LONGEST_ANSWER,
        "temperature": 0,
    }


async def _until_routed(session: aiohttp.ClientSession, url: str, model: str) -> None:
    """Wait until the gateway, too, has learnt that the model is ready."""
    try:
        async with asyncio.timeout(ROUTE_SECONDS):
            while True:
                if await _is_routed(session, url, model):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AskError(f"the gateway did not find the model ready within {ROUTE_SECONDS:g} s") from None


async def _is_routed(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    try:
        async with session.get(f"{url}/v1/models/{model}") as response:
            return response.status == 200 and (await response.json())["ready"] is True
    except aiohttp.ClientError:
        return False  # it is being started
