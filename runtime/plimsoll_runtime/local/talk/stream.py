"""A chat's answer, as it comes over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
LONGEST_LINE = 2**22
"""Bytes. aiohttp's readers give up on longer ones."""


class AskError(Exception):
    """There is no answer, or not all of it; the message says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, without /v1, and with which key."""

    url: str
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt (some of them `cached`) and of its answer."""

    prompt: int
    answer: int
    cached: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What an event adds: words, a thought, why it ended, and what it all took."""

    text: str = ""
    thought: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


async def stream(
    session: aiohttp.ClientSession, server: Server, body: Mapping[str, Any]
) -> AsyncGenerator[Chunk, None]:
    """The answer to a chat request. Raises AskError."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with session.post(
            f"{server.url}/v1/chat/completions",
            json=asked,
            headers=server.headers,
            timeout=NO_TIMEOUT,
            read_bufsize=LONGEST_LINE,
        ) as response:
            if response.status != 200:
                raise AskError(reason(await response.text()))
            async for line in response.content:
                data = line.decode().strip()
                if data == "data: [DONE]":
                    return
                if data.startswith("data:"):  # else a comment: the model is being loaded
                    yield _chunk(json.loads(data.removeprefix("data:")))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"the connection to {server.url} broke: {error or type(error).__name__}") from error
    raise AskError("the answer ended early")


async def names(session: aiohttp.ClientSession, server: Server) -> list[str]:
    """The models that the server offers. Raises AskError."""
    try:
        async with session.get(f"{server.url}/v1/models", headers=server.headers) as response:
            text = await response.text()
            if response.status != 200:
                raise AskError(reason(text))
            return [str(card["id"]) for card in json.loads(text)["data"]]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"{server.url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise AskError(f"{server.url}/v1/models is no list of models: does an OpenAI API answer there?") from error


def reason(text: str) -> str:
    """What an error's body says."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]


def _chunk(event: Mapping[str, Any]) -> Chunk:
    if "error" in event:
        raise AskError(str(event["error"].get("message", event["error"])))
    choice = (event.get("choices") or [{}])[0]
    delta, usage = choice.get("delta") or {}, event.get("usage")
    return Chunk(
        delta.get("content") or "",
        delta.get("reasoning_content") or "",
        choice.get("finish_reason"),
        None if usage is None else _usage(usage),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], cached)
