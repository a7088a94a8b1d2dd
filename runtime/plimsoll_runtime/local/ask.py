"""One question to a model, through the gateway, with the answer written as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

LONGEST_ANSWER = 256
ROUTE_SECONDS = 15.0
POLL_SECONDS = 0.1
NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


class AskError(Exception):
    """There is no answer, or not all of it; the message says why."""


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    question: str,
    api_key: str | None,
    write: Callable[[str], None],
) -> None:
    """Send one streaming chat request; `write` gets the pieces of the answer. Raises AskError."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        await _until_routed(session, url, model)
        async with session.post(
            f"{url}/v1/chat/completions", json=_request(model, question), headers=headers, timeout=NO_TIMEOUT
        ) as response:
            if response.status != 200:
                raise AskError(_reason(await response.text()))
            await _write_stream(response.content, write)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"the connection to the gateway broke: {error or type(error).__name__}") from error


def _request(model: str, question: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": LONGEST_ANSWER,
        "temperature": 0,
        "stream": True,
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


async def _write_stream(content: aiohttp.StreamReader, write: Callable[[str], None]) -> None:
    async for line in content:
        if line.startswith(b":"):
            continue  # a comment: the model is being loaded
        data = line.decode().strip().removeprefix("data:").strip()
        if data == "[DONE]":
            return
        if data:
            write(_text(json.loads(data)))
    raise AskError("the answer ended early")


def _text(chunk: Mapping[str, Any]) -> str:
    if "error" in chunk:
        raise AskError(str(chunk["error"].get("message", chunk["error"])))
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
