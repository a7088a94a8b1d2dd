"""Sends one request over loopback and returns its outcome as one word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from soak.traffic import HUNG_UP, WHOLE, Ask

REQUEST_SECONDS = 180.0
"""A longer request counts as stuck: the longest one takes some seconds, even after all others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request: its outcome, and for a complete one the texts of its choices and the number of tokens."""

    outcome: str
    texts: tuple[str, ...] = ()
    tokens: int = 0


def session() -> aiohttp.ClientSession:
    """Return a session with one connection per request, so that a disconnecting client really closes it."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def send(session: aiohttp.ClientSession, url: str, ask: Ask) -> Answer:
    """Send a request. The outcome is "STATUS CODE" for errors, "lost: WHY" without a response; never raises for a
    server's behaviour.
    """
    try:
        async with asyncio.timeout(ask.hang_up_seconds):
            return await _send(session, url, ask)
    except TimeoutError:
        return Answer(HUNG_UP if ask.hang_up_seconds is not None else f"lost: no end within {REQUEST_SECONDS:g} s")
    except (aiohttp.ClientError, ConnectionError) as error:
        return Answer(f"lost: {type(error).__name__}")


async def _send(session: aiohttp.ClientSession, url: str, ask: Ask) -> Answer:
    data = ask.body if isinstance(ask.body, str) else json.dumps(ask.body)
    headers = {"Content-Type": "application/json"}
    async with session.request(ask.method, url + ask.path, data=data, headers=headers) as response:
        if response.status != 200:
            return Answer(f"{response.status} {_code(await response.json())}")
        if ask.streams:
            return await _read_stream(response, ask)
        return _judge(ask, Collected().add(await response.json()))


async def _read_stream(response: aiohttp.ClientResponse, ask: Ask) -> Answer:
    collected, seen = Collected(), 0
    async for event in _events(response):
        if seen == ask.hang_up_events:
            return Answer(HUNG_UP)
        seen += 1
        if event is None:
            return _judge(ask, collected)
        if "error" in event:
            return Answer(f"in the stream {_code(event)}")
        collected.add(event)
    return Answer("lost: a stream without an end")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """Yield the events of a stream; None is its end."""
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        if data:
            yield None if data == b"[DONE]" else json.loads(data)


class Collected:
    """A response, collected from events or at once."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.tokens = 0

    def add(self, event: dict[str, Any]) -> Collected:
        """Add the data of an event, or of a complete response."""
        for choice in event["choices"]:
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            if choice["finish_reason"] is not None:
                self.reasons[index] = choice["finish_reason"]
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        return self


def _judge(ask: Ask, collected: Collected) -> Answer:
    """Return the result of a response that has ended: WHOLE with its texts and tokens, or what is wrong with it."""
    texts = tuple(text for _, text in sorted(collected.texts.items()))
    wrong = sorted(set(collected.reasons.values()) - {"stop", "length"})
    if wrong or len(collected.reasons) != len(texts):
        return Answer(f"wrong: finish reasons {', '.join(wrong) or 'missing'}")
    if not ask.least <= collected.tokens <= ask.most:
        return Answer(f"wrong: {collected.tokens} tokens instead of {ask.least} to {ask.most}")
    return Answer(WHOLE, texts, collected.tokens)


def _code(body: dict[str, Any]) -> str:
    return str(body["error"]["code"])
