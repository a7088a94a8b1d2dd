"""The queue limit: bounds waiting requests, and refuses those beyond it with a 503 and a Retry-After."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Self

from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError
from plimsoll_runtime.options import MAX_WAITING, MAX_WAITING_TOKENS

SECONDS = 10.0
"""Time constant of the rate: a departure of that age counts 1/e."""
LEAST_SECONDS = 0.5
"""Shortest time of counting before a rate is computed."""
NOTHING = 1e-3
"""A weight below this counts as zero: there was no recent departure."""


class DepartureRate:
    """The rate at which choices or tokens leave the queue, over about the last `SECONDS` seconds; older departures
    count less."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._weight = 0.0
        self._began = self._as_of = clock()

    def left(self, count: int) -> None:
        """Count departures at the present time."""
        self._age()
        if self._weight < NOTHING:
            self._began = self._as_of
        self._weight += count

    def seconds(self, count: int) -> float | None:
        """Return the seconds until `count` more departures; None if the rate is unknown."""
        self._age()
        over = self._as_of - self._began
        if self._weight < NOTHING or over < LEAST_SECONDS:
            return None
        return count * SECONDS * -math.expm1(-over / SECONDS) / self._weight

    def _age(self) -> None:
        now = self._clock()
        self._weight *= math.exp((self._as_of - now) / SECONDS)
        self._as_of = now


LONGEST_RETRY_AFTER = 60
"""In seconds; longer estimates would be guesses."""


class QueueLimit:
    """Counts the choices that wait for their first token, and their prompts' tokens. Changed on the event loop only.

    Without a bound an overloaded server would take every request, and each waiting prompt costs memory and delays
    those behind it. There are two bounds: on the choices that wait for their first token, and on the tokens of their
    prompts. A prompt counts once for all its choices. The refusal is a 503, whose Retry-After assumes the recent
    rate of departures. OpenAI's clients repeat a request after a 503 by themselves, and the gateway first sends it
    to another replica, which it would not do after a 429.
    """

    def __init__(
        self,
        limit: int = MAX_WAITING,
        token_limit: int = MAX_WAITING_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer_rate = DepartureRate(clock)
        self.token_rate = DepartureRate(clock)
        self.limit = limit
        self.token_limit = token_limit
        self.waiting = 0
        self.waiting_tokens = 0
        self.refused = 0

    def check(self, answers: int = 1, tokens: int = 1) -> None:
        """Raise ApiError if the choices and tokens do not fit next to the waiting ones (503), or exceed a limit
        alone (400)."""
        if answers > self.limit:
            raise ApiError(
                f"The request asks for {answers} choices, above the server's queue limit of {self.limit} "
                "(--max-waiting); ask for fewer.",
                param="n",
                code="invalid_value",
            )
        if tokens > self.token_limit:
            raise ApiError(
                f"The request's prompts have {tokens} tokens, above the server's queue limit of {self.token_limit} "
                "(--max-waiting-tokens); send fewer.",
                param="prompt",
                code="invalid_value",
            )
        if self.waiting + answers > self.limit:
            seconds = self.answer_rate.seconds(self.waiting + answers - self.limit)
            raise self._overloaded(f"{self.waiting} choices wait", f"{self.limit} (--max-waiting)", seconds)
        if self.waiting_tokens + tokens > self.token_limit:
            seconds = self.token_rate.seconds(self.waiting_tokens + tokens - self.token_limit)
            state, limit = f"prompts of {self.waiting_tokens} tokens wait", f"{self.token_limit}"
            raise self._overloaded(state, f"{limit} (--max-waiting-tokens)", seconds)

    def take(self, answers: Mapping[int, int], tokens: Mapping[int, int]) -> QueueReservation:
        """Reserve places for a request's choices. `answers` maps each choice to its prompt, `tokens` each prompt to its
        number of tokens.

        A context manager. Raises ApiError like `check`.
        """
        seats = QueueReservation(self, dict(answers), tokens)
        self.check(len(answers), sum(tokens.values()))
        self.waiting += len(answers)
        self.waiting_tokens += sum(tokens.values())
        return seats

    def _overloaded(self, state: str, limit: str, seconds: float | None) -> ApiError:
        self.refused += 1
        wait = RETRY_AFTER if seconds is None else min(max(1, math.ceil(seconds)), LONGEST_RETRY_AFTER)
        return ApiError(
            f"The server is overloaded: {state} for their first token, and the limit is {limit}. "
            f"Try again in {wait} s.",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            code="overloaded",
            headers={"Retry-After": str(wait)},
        )


class QueueReservation:
    """Waiting choices of one request; the end of the `with` block releases those that are left."""

    def __init__(self, room: QueueLimit, answers: dict[int, int], tokens: Mapping[int, int]) -> None:
        self._room = room
        self._answers = answers
        self._tokens = tokens
        self._left = dict.fromkeys(tokens, 0)
        for prompt in answers.values():
            self._left[prompt] += 1

    def leave(self, answer: int) -> None:
        """Release a choice that has started. A prompt is released with its last choice. A second call does nothing."""
        if answer not in self._answers:
            return
        prompt = self._answers.pop(answer)
        self._room.waiting -= 1
        self._room.answer_rate.left(1)
        self._left[prompt] -= 1
        if not self._left[prompt]:
            self._room.waiting_tokens -= self._tokens[prompt]
            self._room.token_rate.left(self._tokens[prompt])

    def leave_all(self) -> None:
        """Release all choices."""
        for answer in list(self._answers):
            self.leave(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave_all()
