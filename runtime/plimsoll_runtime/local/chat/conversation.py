"""A conversation with a model: its messages, and each output as it streams over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
LONGEST_LINE = 2**22
"""Bytes. aiohttp's readers fail on longer lines."""


class AskError(Exception):
    """No output, or an incomplete one; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Server:
    """URL (without /v1) and API key of a server."""

    url: str
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of each request."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Number of tokens in the prompt (of these `cached` from the prefix cache) and in the output."""

    prompt: int
    answer: int
    cached: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Data of one streamed event: text, reasoning, finish reason and token usage."""

    text: str = ""
    thought: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


async def stream(
    session: aiohttp.ClientSession, server: Server, body: Mapping[str, Any]
) -> AsyncGenerator[Chunk, None]:
    """Send a chat request, and yield a chunk for each event of its output. Raises AskError."""
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
                if data.startswith("data:"):  # other lines are comments, sent while the model loads
                    yield _chunk(json.loads(data.removeprefix("data:")))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"the connection to {server.url} failed: {error or type(error).__name__}") from error
    raise AskError("the stream ended before the output was complete")


async def names(session: aiohttp.ClientSession, server: Server) -> list[str]:
    """Return the names of the models that the server offers. Raises AskError."""
    try:
        async with session.get(f"{server.url}/v1/models", headers=server.headers) as response:
            text = await response.text()
            if response.status != 200:
                raise AskError(reason(text))
            return [str(card["id"]) for card in json.loads(text)["data"]]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"{server.url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise AskError(
            f"{server.url}/v1/models did not return a list of models; check that the URL is that of an OpenAI API"
        ) from error


def reason(text: str) -> str:
    """Return the message of an error body, or the first 500 characters of a body in another format."""
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


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of an output: seconds to its first token, and from there to its last."""

    usage: Usage
    first: float
    rest: float

    def __str__(self) -> str:
        said = f"{self.usage.answer} tokens"
        if self.rest > 0 and self.usage.answer > 1:
            said += f", {(self.usage.answer - 1) / self.rest:.1f} tokens/s"
        cached = f" ({self.usage.cached} of {self.usage.prompt} prompt tokens were cached)" if self.usage.cached else ""
        return f"{said}, first after {self.first:.2f} s{cached}"


@dataclass(slots=True)
class Talk:
    """A conversation with `model`. `settings` are fields of every request, such as max_tokens and temperature."""

    server: Server
    model: str
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: list[dict[str, str]] = field(default_factory=list)
    pace: Pace | None = None
    finish_reason: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, as a request sends it."""
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.said]

    async def say(self, session: aiohttp.ClientSession, text: str) -> AsyncGenerator[Chunk, None]:
        """Send `text` and yield the output. If the caller stops early, the message and the partial output are kept. If
        there is no text (reasoning does not count), the message is dropped. Raises AskError.
        """
        self.said.append({"role": "user", "content": text})
        body = {"model": self.model, "messages": self.messages, **self.settings}
        self.pace, self.finish_reason = None, None
        words, began, first = list[str](), time.monotonic(), 0.0
        try:
            async with aclosing(stream(session, self.server, body)) as chunks:
                async for chunk in chunks:
                    now = time.monotonic()
                    if (chunk.text or chunk.thought) and not first:
                        first = now
                    words.append(chunk.text)
                    self.finish_reason = chunk.finish_reason or self.finish_reason
                    if chunk.usage is not None:
                        self.pace = Pace(chunk.usage, (first or now) - began, now - (first or now))
                    yield chunk
        finally:
            if answer := "".join(words):
                self.said.append({"role": "assistant", "content": answer})
            else:
                self.said.pop()
