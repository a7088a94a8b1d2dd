"""Polls one process: requests that wait for news, back-off, and responses of bounded size."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import aiohttp

logger = logging.getLogger(__name__)

LEAST_PAUSE = 0.1
"""Between two questions: who answers each at once costs no core."""
FIRST_DELAY = 0.5
NOTHING_SEEN = -1


class UnforeseenError(Exception):
    """Asking a process, or taking its answer, failed in a way that nobody thought of; the log says how."""


class Answer(Protocol):
    """`sequence` rises with each piece of news of the process `instance`."""

    @property
    def instance(self) -> str:
        """A name that another process never has."""
        ...

    @property
    def sequence(self) -> int:
        """Of the latest news."""
        ...


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True, slots=True)
class Polling:
    """How to ask: after one of `failures` with growing pauses of at most `longest` seconds. `sleep` is the loop's."""

    failures: tuple[type[Exception], ...]
    longest: float
    sleep: Callable[[float], Awaitable[None]]

    async def run(
        self,
        name: str,
        ask: Callable[[int], Awaitable[AnswerT]],
        take: Callable[[AnswerT], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`ask` for what comes after a sequence, for ever; `name` is whom in the log. `fail` hears of what fails."""
        delay, after, instance = FIRST_DELAY, NOTHING_SEEN, ""
        while True:
            answer = await self._once(name, ask(after), take, fail)
            if answer is None:
                await self.sleep(delay * random.uniform(0.5, 1.0))
                delay, after = min(delay * 2, self.longest), NOTHING_SEEN
            else:
                if answer.instance != instance:
                    logger.info("%s is the process %s", name, answer.instance)
                delay, after, instance = FIRST_DELAY, answer.sequence, answer.instance
                await self.sleep(LEAST_PAUSE)

    async def _once(
        self,
        name: str,
        question: Awaitable[AnswerT],
        take: Callable[[AnswerT], None],
        fail: Callable[[Exception], None],
    ) -> AnswerT | None:
        """An answer that was taken; None where `fail` has heard why there is none."""
        try:
            answer = await question
            take(answer)
        except self.failures as error:
            fail(error)
        except Exception:  # one odd answer must not end what is asked of this process
            logger.exception("%s: asking it broke", name)
            fail(UnforeseenError("an error of the operator itself; please report it"))
        else:
            return answer
        return None


class TooLargeError(Exception):
    """An answer has more bytes than are read; the message says how many that is."""


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an answer, so that one that does not end costs no memory. Raises TooLargeError."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise TooLargeError(f"its answer is larger than {limit} bytes")
    return bytes(data)
