"""Asks the leaders of groups that do not serve for `/health`, so that a status can say why.

No reconcile waits for an answer. Pods are not trusted: answers have limits of time and size, and what is not valid is
logged once for each leader and ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp

from plimsoll_cluster.pod_status import url_of
from plimsoll_operator.kube.leader_registry import Entry, LeaderRegistry
from plimsoll_operator.kube.polling import TooLargeError, read_bounded
from plimsoll_operator.spec.identity import PORT, ObjectKey
from plimsoll_operator.status.leader_words import LIMIT, BadHealthError, read_words

logger = logging.getLogger(__name__)

AT_ONCE = 8
ANSWER_SECONDS = 2.0


class LeaderError(Exception):
    """A leader is not reachable, or did not answer in time."""


class GetHealth(Protocol):
    """Requests `/health` of a leader."""

    async def __call__(self, address: str) -> bytes:
        """Return the body of the answer, whatever its status. Raise LeaderError, or BadHealthError for a long body."""
        ...


@asynccontextmanager
async def health_client(port: int = PORT) -> AsyncIterator[GetHealth]:
    """Provide a client for leaders. It keeps no connections and no cookies, and decompresses nothing."""
    connector = aiohttp.TCPConnector(limit=AT_ONCE, force_close=True)
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=jar, timeout=timeout, auto_decompress=False
    ) as session:

        async def get(address: str) -> bytes:
            try:
                async with session.get(f"{url_of(address, port)}/health", allow_redirects=False) as response:
                    return await read_bounded(response, LIMIT)
            except TooLargeError as error:
                raise BadHealthError(str(error)) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise LeaderError(str(error) or type(error).__name__) from error

        yield get


class LeaderPoller:
    """Asks the leaders of a registry. Calls `wake` with each model whose words have changed."""

    def __init__(self, registry: LeaderRegistry, get: GetHealth, wake: Callable[[ObjectKey], None]) -> None:
        self._registry = registry
        self._get = get
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask forever, and only while there is a leader to ask."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._registry.changed.clear()
                for entry in self._registry.take_due(clock(), AT_ONCE - len(self._tasks)):
                    task = asyncio.create_task(self._ask(entry))
                    self._tasks.add(task)
                    task.add_done_callback(self._done)
                for key in self._registry.show(clock()):
                    self._wake(key)
                has_room = len(self._tasks) < AT_ONCE
                until = min(self._registry.next_show(), self._registry.next_question() if has_room else math.inf)
                await self._pause(until - clock())
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                await self._registry.changed.wait()

    async def _ask(self, entry: Entry) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                words = read_words(await self._get(entry.leader.address))
        except (LeaderError, TimeoutError):
            self._registry.failed(entry, clock())
        except BadHealthError as error:
            if entry.may_complain():
                logger.warning("%s: the answer of the leader %s is ignored: %s", entry.key, entry.leader.name, error)
            self._registry.failed(entry, clock())
        except Exception:  # One unusual answer must not end the polling of all leaders.
            if entry.may_complain():
                logger.exception("%s: asking the leader %s failed", entry.key, entry.leader.name)
            self._registry.failed(entry, clock())
        else:
            self._registry.answered(entry, words, clock())

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._registry.changed.set()
