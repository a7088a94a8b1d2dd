"""A conversation with a model: what was said, and what comes next."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from plimsoll_runtime.local.talk.stream import Chunk, Server, Usage, stream


@dataclass(frozen=True, slots=True)
class Pace:
    """How an answer came: seconds to its first token, and from there to its last."""

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
    """What is said to `model` of a server. `settings` are fields of every request: max_tokens, temperature."""

    server: Server
    model: str
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: list[dict[str, str]] = field(default_factory=list)
    pace: Pace | None = None
    finish_reason: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, as a request has it."""
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.said]

    async def say(self, session: aiohttp.ClientSession, text: str) -> AsyncGenerator[Chunk, None]:
        """The answer as it comes. What has come of it is kept when it is left early; what was said, too. Where nothing
        came, it is as if nothing had been said. Raises AskError.
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
