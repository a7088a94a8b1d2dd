"""Limits of batches: those of an API key, which a gateway sends, and the number of lines that run at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.errors import UNREADABLE

HEADER = "x-plimsoll-batch"
"""Header from gateway to runtime: a `KeyTerms` as JSON, in a request that creates a batch."""
MINUTE = BEGINS_AFTER = 60.0
BYTES_PER_TOKEN, USUAL_ANSWER = 4, 256
"""Bytes per prompt token, and output tokens of a line without a limit: the gateways' estimate (see tests/contract)."""

Limit = Annotated[int, Meta(ge=1)]


class KeyTerms(msgspec.Struct, frozen=True, rename="camel"):
    """Name and limits of the API key that creates a batch: the models that it may use (patterns), how many of its
    batches may be open at the same time, and each batch's requests and tokens a minute; None means no limit."""

    key: str
    models: tuple[str, ...]
    at_once: Limit
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None

    @property
    def is_limited(self) -> bool:
        """Whether requests or tokens are limited."""
        return (self.requests_per_minute, self.tokens_per_minute) != (None, None)

    def may_use(self, model: str) -> bool:
        """Return whether the key may use the model."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def read_terms(text: str | None) -> KeyTerms | None:
    """Parse the header that a gateway sent; None if it sent none. Raises ApiError (503) if it is invalid: the client is
    not at fault."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=KeyTerms)
    except UNREADABLE as error:
        raise unavailable(
            f"The gateway's batch terms cannot be read ({error}); run gateway and runtime in the same version."
        ) from error


def too_many_open(terms: KeyTerms) -> ApiError:
    """Return the error (429) for a key that has as many open batches as it may have."""
    return ApiError(
        f"The API key '{terms.key}' has {terms.at_once} open batches, its limit; wait until one ends.",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        code="rate_limit_exceeded",
    )


class _Bounds(msgspec.Struct):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None


class _Line(msgspec.Struct):
    body: _Bounds = msgspec.field(default_factory=_Bounds)


def expected_tokens(line: bytes, *, generates: bool) -> int:
    """Return an estimate of a line's tokens: those of its prompt and, if its endpoint `generates`, the most output
    tokens of all its choices (USUAL_ANSWER for a choice without a limit). Invalid fields are ignored here; the endpoint
    refuses them."""
    prompt = 1 + len(line) // BYTES_PER_TOKEN
    if not generates:
        return prompt
    try:
        body = msgspec.json.decode(line, type=_Line).body
    except UNREADABLE:
        return prompt
    bound = next((each for each in (body.max_completion_tokens, body.max_tokens) if each), USUAL_ANSWER)
    return prompt + max(0, bound) * max(1, body.n or 1, body.best_of or 1)


@dataclass(slots=True)
class _Spent:
    at: float
    tokens: int


class Allowance:
    """Limits one batch's requests and tokens in every window of a minute. No line runs in the first minute, because an
    ended batch of the same key, or the server that ran this batch before, may have used up its limits.

    The gateway sends the terms when a batch is created. It divides the part of a key's limits for batches by the number
    of batches that may be open at the same time. All batches together therefore stay within that part, whichever
    servers run them, and the servers need no communication.
    """

    def __init__(
        self,
        terms: KeyTerms,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._terms = terms
        self._clock = clock
        self._pause = pause
        self._spent: deque[_Spent] = deque()
        self._tokens = 0
        self._begins = clock() + BEGINS_AFTER
        self._turn = asyncio.Lock()

    def refusal(self, tokens: int) -> str | None:
        """Return why a line with this many tokens can never run; None if it can."""
        most = self._terms.tokens_per_minute
        if most is None or tokens <= most:
            return None
        return (
            f"The line may take about {tokens} tokens (of its text and max_tokens), above the limit of {most} a minute "
            f"for a batch of the API key '{self._terms.key}'; shorten the line or reduce max_tokens."
        )

    async def take(self, tokens: int) -> Callable[[int], None]:
        """Wait until a line with this many tokens may run, in the order of calls. Return a function to call with the
        number of tokens that it actually used."""
        async with self._turn:
            while (seconds := self._seconds_until(tokens)) > 0:
                await self._pause(seconds)
            spent = _Spent(self._clock(), tokens)
            self._spent.append(spent)
            self._tokens += tokens

        def was(actual: int) -> None:
            now = self._clock()
            if now - spent.at < MINUTE:
                self._tokens += actual - spent.tokens
                spent.tokens = actual
            elif actual > spent.tokens:  # counts as tokens of the present minute
                self._spent.append(_Spent(now, actual - spent.tokens))
                self._tokens += actual - spent.tokens

        return was

    def _seconds_until(self, tokens: int) -> float:
        now, requests, most = self._clock(), self._terms.requests_per_minute, self._terms.tokens_per_minute
        while self._spent and now - self._spent[0].at >= MINUTE:
            self._tokens -= self._spent.popleft().tokens
        if now < self._begins:
            return self._begins - now
        full = requests is not None and len(self._spent) >= requests
        if self._spent and (full or (most is not None and self._tokens + tokens > most)):
            return self._spent[0].at + MINUTE - now
        return 0.0


LOOK_SECONDS = 0.2
"""Longest delay until a change in the number of live requests is noticed."""
CROWDED = 4
"""While client requests are in flight, `Pace` divides its limit by this number."""


class Pace:
    """Limits how many lines of batches run at the same time: to `most`, or to a part of it (see CROWDED) while `live`,
    which returns the number of client requests in flight, is above 0. Used on the event loop only."""

    def __init__(self, most: int, live: Callable[[], int]) -> None:
        self.most = most
        self._live = live
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._look: asyncio.TimerHandle | None = None

    @property
    def allowed(self) -> int:
        """How many lines may run at present."""
        return max(1, self.most // CROWDED) if self._live() else self.most

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait, in the order of calls, until one more line may run. It counts as running until the context ends."""
        begins = asyncio.get_running_loop().create_future()
        self._waiting.append(begins)
        self._let_in()
        try:
            await begins
            yield
        finally:
            if begins.done() and not begins.cancelled():
                self._under_way -= 1
                self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._under_way < self.allowed:
            begins = self._waiting.popleft()
            if not begins.done():
                begins.set_result(None)
                self._under_way += 1
        if self._waiting and self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._let_in()
