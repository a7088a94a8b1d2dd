"""Long-polls one process with back-off, and reads responses of bounded size."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import aiohttp

logger = logging.getLogger(__name__)

LEAST_PAUSE = 0.1
"""The least pause between two requests, so that a process which responds immediately does not use a core."""
FIRST_DELAY = 0.5
NOTHING_SEEN = -1


class UnforeseenError(Exception):
    """Polling a process, or processing its report, failed with an unexpected error; the log has it."""


class Answer(Protocol):
    """A report of a polled process. `sequence` grows with each change in the process `instance`."""

    @property
    def instance(self) -> str:
        """The unique name of the process."""
        ...

    @property
    def sequence(self) -> int:
        """The number of the latest change."""
        ...


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True, slots=True)
class Polling:
    """Polls with back-off: after each error the pause doubles, up to `longest` seconds. `failures` are the errors that
    are expected; the traceback of any other is logged.
    """

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
        """Poll forever: call `ask` with the last sequence (NOTHING_SEEN at first and after an error), pass reports to
        `take` and errors to `fail`. `name` is for the log.
        """
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
        """Return the report after `take` has processed it; None if that or the request failed, with `fail` called."""
        try:
            answer = await question
            take(answer)
        except self.failures as error:
            fail(error)
        except Exception:  # One unusual report must not end the polling of this process.
            logger.exception("%s: polling it failed", name)
            fail(UnforeseenError("an error of the operator itself; please report it"))
        else:
            return answer
        return None


class TooLargeError(Exception):
    """A response exceeds the limit; the message has the limit."""


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a response, at most `limit` bytes. Raise TooLargeError for a longer one."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise TooLargeError(f"its response is larger than {limit} bytes")
    return bytes(data)
