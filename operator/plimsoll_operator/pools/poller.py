"""Asks every host for its report, again and again: one task a pod, a question that waits for news, and back-off."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from plimsoll_operator.pools.book import HostBook
from plimsoll_operator.pools.client import HostClient, HostError
from plimsoll_operator.pools.report import BadReportError

logger = logging.getLogger(__name__)

LEAST_PAUSE = 0.1
"""Between two questions: a host that answers each at once costs no core."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 15.0


class Poller:
    """The tasks. `sleep` and `clock` are the loop's and the machine's."""

    def __init__(
        self,
        book: HostBook,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._book = book
        self._clock = clock
        self._sleep = sleep
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def follow(self, uid: str, address: str, client: HostClient) -> None:
        """Ask the host in the pod with this uid, from now on; again from the start where its address has changed."""
        known = self._tasks.get(uid)
        if known is not None and known[0] == address and not known[1].done():
            return
        self.leave(uid)
        self._tasks[uid] = (address, asyncio.create_task(self._ask(uid, client)))

    def leave(self, uid: str) -> None:
        """Ask it no more."""
        known = self._tasks.pop(uid, None)
        if known is not None:
            known[1].cancel()

    @property
    def followed(self) -> frozenset[str]:
        """The uids of the pods that are asked."""
        return frozenset(self._tasks)

    async def close(self) -> None:
        """End every task."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, uid: str, client: HostClient) -> None:
        delay, after, instance = FIRST_DELAY, -1, ""
        while True:
            try:
                report = await client.report(after)
            except (HostError, BadReportError) as error:
                self._book.fail(uid, str(error), refused=isinstance(error, BadReportError))
                await self._sleep(delay * random.uniform(0.5, 1.0))
                delay, after = min(delay * 2, LONGEST_DELAY), -1
                continue
            if report.instance != instance:
                logger.info("pod %s: its host is the process %s", uid, report.instance)
            delay, after, instance = FIRST_DELAY, report.sequence, report.instance
            self._book.take(uid, report, self._clock())
            await self._sleep(LEAST_PAUSE)
