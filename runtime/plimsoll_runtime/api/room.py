"""The room for answers that wait: more than so many are refused at once, instead of being late for everybody.

Without a bound a server that is asked more than it can do takes everything, and each prompt that waits costs memory and
makes those behind it later. The refusal is a 503 with Retry-After: OpenAI's clients try it again by themselves, and the
gateway gives the request to another replica first, which it would not do with a 429 ("you ask too much").
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Self

from plimsoll_runtime.api.errors import RETRY_AFTER, ApiError

MAX_WAITING = 4096
"""As many answers as one request may ask for."""


class Room:
    """Counts answers whose first token is still to come. Changed on the event loop only."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.limit = limit
        self.waiting = 0
        self.refused = 0

    def check(self, answers: int) -> None:
        """Raises ApiError when so many more do not fit: 503 now, 400 ever."""
        if answers > self.limit:
            raise ApiError(
                f"The request asks for {answers} answers, and no more than {self.limit} may wait on this server "
                "(--max-waiting): send fewer at once.",
                param="n",
                code="invalid_value",
            )
        if self.waiting + answers > self.limit:
            self.refused += 1
            raise ApiError(
                f"The server is overloaded: {self.waiting} answers wait for their first token, and no more than "
                f"{self.limit} may (--max-waiting). Try again in some seconds.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                code="overloaded",
                headers={"Retry-After": str(RETRY_AFTER)},
            )

    def take(self, answers: Iterable[int]) -> Seats:
        """Seats for answers, by their index: to be used with `with`. Raises ApiError as `check` does."""
        seats = Seats(self, set(answers))
        self.check(len(seats))
        self.waiting += len(seats)
        return seats


class Seats:
    """One request's answers that wait; what is left of them is given back at the end of the `with` block."""

    def __init__(self, room: Room, answers: set[int]) -> None:
        self._room = room
        self._answers = answers

    def __len__(self) -> int:
        return len(self._answers)

    def leave(self, answer: int) -> None:
        """An answer has begun. The second time it changes nothing."""
        if answer in self._answers:
            self._answers.remove(answer)
            self._room.waiting -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.waiting -= len(self._answers)
        self._answers.clear()
