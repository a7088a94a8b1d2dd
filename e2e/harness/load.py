"""Bounded load through the ingress: users that ask, one after the other, until they are told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import openai

MAX_REQUESTS = 5000


@dataclass(slots=True)
class Outcome:
    """What came of the requests; a failure is anything but a whole answer."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


@contextlib.contextmanager
def load(client: openai.AsyncOpenAI, model: str, *, users: int, prompt: str, tokens: int) -> Iterator[Outcome]:
    """Keep `users` streaming requests under way while the body runs; when it returns all have ended, and the client."""
    outcome, stop = Outcome(), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_users(client, model, users, prompt, tokens, outcome, stop)), name="load"
    )
    thread.start()
    try:
        yield outcome
    finally:
        stop.set()
        thread.join(timeout=120)
    if thread.is_alive():
        raise AssertionError("requests were still under way 120 s after the load was stopped")


async def _users(
    client: openai.AsyncOpenAI,
    model: str,
    users: int,
    prompt: str,
    tokens: int,
    outcome: Outcome,
    stop: threading.Event,
) -> None:
    async def user() -> None:
        while not stop.is_set() and outcome.answered + len(outcome.failures) < MAX_REQUESTS:
            try:
                outcome.texts.add(await _ask(client, model, prompt, tokens))
                outcome.answered += 1
            except (openai.OpenAIError, AssertionError) as error:
                outcome.failures.append(f"{type(error).__name__}: {error}")

    async with client:
        await asyncio.gather(*(user() for _ in range(users)))


async def _ask(client: openai.AsyncOpenAI, model: str, prompt: str, tokens: int) -> str:
    """One streaming completion, greedy and of a fixed length; an answer that breaks off is an error."""
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text, generated = "", None
    async for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        if chunk.usage is not None:
            generated = chunk.usage.completion_tokens
    assert generated == tokens, f"{generated} tokens came instead of {tokens}"
    return text
