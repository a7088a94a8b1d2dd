"""Limited load through the ingress: users that send one request after another until they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai

from harness.figures import percentile

MAX_REQUESTS = 20_000
MAX_SECONDS = 1800.0
STOP_SECONDS = 120.0
PAUSE_SECONDS = 0.2
PAUSED_SECONDS = 1.0
"""Pauses between tokens up to this length also occur without a failure."""
FAILURES_KEPT = 5


@dataclass(frozen=True, slots=True)
class Request:
    """The result of one request.

    `began`: seconds since the start of the load. `seconds`: duration. `status`: HTTP status, None without a response.
    `fault`: description of the failure; None for a complete response. `told`: whether the server reported the fault by
    a status or an error event, rather than a broken connection. `model`: the requested model.
    """

    began: float
    seconds: float
    status: int | None
    fault: str | None
    told: bool = False
    model: str = ""

    @property
    def ended(self) -> float:
        """Seconds from the start of the load to the end of the request."""
        return self.began + self.seconds

    def __str__(self) -> str:
        return f"at {self.began:.1f} s, after {self.seconds:.1f} s, status {self.status}: {self.fault or 'whole'}"


@dataclass(slots=True)
class Outcome:
    """All ended requests. Anything but a complete response is a failure.

    `texts`: the outputs of each model. `tokens`: when text of each model came, in seconds since the start of the load.
    """

    requests: list[Request] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    started: float = field(default_factory=time.monotonic)
    tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def answered(self) -> int:
        """Number of complete responses."""
        return sum(request.fault is None for request in self.requests)

    @property
    def failures(self) -> list[str]:
        """Descriptions of all failures, with time and status."""
        return [str(request) for request in self.requests if request.fault is not None]

    def now(self) -> float:
        """Seconds since the start of the load, like `Request.began`."""
        return time.monotonic() - self.started

    def resumed_after(self, model: str, began: float, ended: float) -> float:
        """Return the seconds from `began` to the end of the longest pause between tokens of a model from `began` to
        `ended`; 0 if no pause is longer than PAUSED_SECONDS.
        """
        ticks = [began, *(tick for tick in self.tokens[model] if began < tick < ended)]
        pauses = [(later - sooner, later - began) for sooner, later in itertools.pairwise(ticks)]
        longest, resumed = max(pauses, default=(0.0, 0.0))
        return round(resumed, 1) if longest > PAUSED_SECONDS else 0.0

    def summary(self) -> dict[str, Any]:
        """Return figures for a record; times in seconds."""
        whole = sorted(request.seconds for request in self.requests if request.fault is None)
        ends = sorted([0.0, *(r.ended for r in self.requests if r.fault is None)])
        gaps = [later - sooner for sooner, later in itertools.pairwise(ends)]
        return {
            "requests": len(self.requests),
            "failed": len(self.requests) - len(whole),
            "first_failures": self.failures[:FAILURES_KEPT],
            "statuses": dict(Counter(str(request.status) for request in self.requests)),
            "seconds_p50": percentile(whole, 50),
            "seconds_p99": percentile(whole, 99),
            "seconds_max": percentile(whole, 100),
            "longest_without_an_answer": round(max(gaps, default=0.0), 3),
        }


class LoadEndedError(AssertionError):
    """The load ended before the scenario, so the rest of the scenario had no load."""


@contextlib.contextmanager
def load(
    client: openai.AsyncOpenAI,
    model: str | Callable[[], str],
    *,
    users: int,
    prompt: str,
    tokens: int,
    pause: float = PAUSE_SECONDS,
) -> Iterator[Outcome]:
    """Keep `users` streaming requests in progress within the context; all have ended, and the client is closed, when it
    exits.

    `model` may be a function that returns the model of each request. Each user waits `pause` seconds between requests.
    Raises LoadEndedError if the limits on requests and time ended the load before the context did.
    """
    outcome, stop = Outcome(), asyncio.Event()
    choose = model if callable(model) else lambda: model
    ready = threading.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    async def run() -> bool:
        loop.append(asyncio.get_running_loop())
        ready.set()
        return await _users(client, choose, users, prompt, tokens, pause, outcome, stop)

    finished: list[bool] = []
    thread = threading.Thread(target=lambda: finished.append(asyncio.run(run())), name="load")
    thread.start()
    ready.wait()
    try:
        yield outcome
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed because the load has ended
            loop[0].call_soon_threadsafe(stop.set)
        thread.join(timeout=STOP_SECONDS)
    if thread.is_alive():
        raise AssertionError(f"requests were still under way {STOP_SECONDS:g} s after the load was stopped")
    if finished != [True]:
        raise LoadEndedError(f"the load ended after {len(outcome.requests)} requests, before the scenario did")


async def _users(
    client: openai.AsyncOpenAI,
    choose: Callable[[], str],
    users: int,
    prompt: str,
    tokens: int,
    pause: float,
    outcome: Outcome,
    stop: asyncio.Event,
) -> bool:
    """Run the users, and return whether they ran until they were stopped."""

    def may_go_on() -> bool:
        return len(outcome.requests) < MAX_REQUESTS and outcome.now() < MAX_SECONDS

    async def user() -> None:
        while may_go_on() and not stop.is_set():
            await _record(client, choose(), prompt, tokens, outcome)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)

    async with client:
        await asyncio.gather(*(user() for _ in range(users)))
    return may_go_on()


async def _record(client: openai.AsyncOpenAI, model: str, prompt: str, tokens: int, outcome: Outcome) -> None:
    """Send one request and record its result."""
    began, status, fault, told = outcome.now(), None, None, False
    try:
        stream = await _ask(client, model, prompt, tokens)
        status = stream.response.status_code
        text = await _read(stream, tokens, lambda: outcome.tokens[model].append(outcome.now()))
        outcome.texts[model].add(text)
    except openai.APIStatusError as error:
        status, told = error.status_code, True
        fault = f"{error} (request {error.response.headers.get('x-request-id')})"
    except (openai.OpenAIError, AssertionError) as error:
        cause = f" from {error.__cause__!r}" if error.__cause__ else ""
        fault = f"{type(error).__name__}: {error}{cause}"
        told = type(error) is openai.APIError  # raised by the client for an error event
    outcome.requests.append(Request(began, outcome.now() - began, status, fault, told, model))


async def _ask(
    client: openai.AsyncOpenAI, model: str, prompt: str, tokens: int
) -> openai.AsyncStream[openai.types.Completion]:
    """Start a streaming completion, greedy and of a fixed length."""
    return await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )


async def _read(stream: openai.AsyncStream[openai.types.Completion], tokens: int, came: Callable[[], None]) -> str:
    """Return the text of a streamed output, and call `came` for each piece of it. Raises AssertionError if it has fewer
    or more than `tokens` tokens.
    """
    text, generated = "", None
    async for chunk in stream:
        if chunk.choices:
            came()
        text += "".join(choice.text for choice in chunk.choices)
        if chunk.usage is not None:
            generated = chunk.usage.completion_tokens
    assert generated == tokens, f"{generated} tokens came instead of {tokens}"
    return text
