"""Limits of batches: a key's terms, which a gateway sends, and the number of lines that run next to live requests."""

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
"""Between gateway and runtime: a `KeyTerms` as JSON, in a request that makes a batch."""
MINUTE = BEGINS_AFTER = 60.0
BYTES_PER_TOKEN, USUAL_ANSWER = 4, 256
"""As gateways take a request's tokens before its answer tells them (tests/contract)."""

Limit = Annotated[int, Meta(ge=1)]


class KeyTerms(msgspec.Struct, frozen=True, rename="camel"):
    """Of the key that makes a batch: its name, the models that it may ask (patterns), how many batches of its may be
    open at once, and the requests and tokens of each of them in any minute; None for no limit.
    """

    key: str
    models: tuple[str, ...]
    at_once: Limit
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to keep to."""
        return (self.requests_per_minute, self.tokens_per_minute) != (None, None)

    def may_use(self, model: str) -> bool:
        """Whether the key is for the model of that name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def read_terms(text: str | None) -> KeyTerms | None:
    """What a gateway said; None where it said nothing. Raises ApiError (503) for what is none: no client wrote it."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=KeyTerms)
    except UNREADABLE as error:
        raise unavailable(
            f"The gateway's terms for batches cannot be read ({error}); it must be of this version."
        ) from error


def too_many_open(terms: KeyTerms) -> ApiError:
    """429: as many batches of the key are open as may be."""
    return ApiError(
        f"No more than {terms.at_once} batches of the API key '{terms.key}' may be open at once. Wait for one to end.",
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
    """About how many tokens a line takes. What it says that cannot be read is for its endpoint to refuse."""
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
    """One batch's, minute by minute: no minute, wherever it begins, has more. It begins when a minute is over, since a
    batch of the key that has ended, or the server that had this one, may have used up the last one.

    The gateway sends the terms when a batch is made. The part of a key's limits that is meant for batches is divided by
    the number of batches that may be open at once. So all of them together stay within it, whichever servers run them,
    and the servers need not talk to each other.
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
        """Why a line that takes so many can never be asked; None where it can."""
        most = self._terms.tokens_per_minute
        if most is None or tokens <= most:
            return None
        return (
            f"The line may take some {tokens} tokens (of its text and max_tokens), and a batch of the API key "
            f"'{self._terms.key}' has {most} a minute. Send a shorter one, or a smaller max_tokens."
        )

    async def take(self, tokens: int) -> Callable[[int], None]:
        """Wait until a line may be asked that takes so many, in the order of asking. What is returned is told how many
        they were.
        """
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
            elif actual > spent.tokens:  # it has not counted yet
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
"""How long it may take to be seen that no request of a client is in flight any more."""
CROWDED = 4
"""By how much the bound is divided while one is."""


class Pace:
    """Lets lines begin. `live`: how many requests of clients are in flight. Used on the event loop only."""

    def __init__(self, most: int, live: Callable[[], int]) -> None:
        self.most = most
        self._live = live
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._look: asyncio.TimerHandle | None = None

    @property
    def allowed(self) -> int:
        """How many lines may be under way now."""
        return max(1, self.most // CROWDED) if self._live() else self.most

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A line's time with the engine, which begins when there is room, in the order of asking."""
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
