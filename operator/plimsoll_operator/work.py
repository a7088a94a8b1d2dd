"""Which objects need a pass, and workers that make them: one worker an object at a time, failures with back-off."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from plimsoll_operator.api import ApiError
from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.metrics import FAILURES, PASSES, QUEUE, SECONDS

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0
RESYNC_SECONDS = 60.0
WORKERS = 4

Pass = Callable[[ObjectKey], Awaitable[bool]]


class WorkQueue:
    """Objects that wait for a pass, each once; one that changes during its pass waits again."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._waiting: set[ObjectKey] = set()
        self._busy: set[ObjectKey] = set()
        self._again: set[ObjectKey] = set()
        self._failures: dict[ObjectKey, int] = {}
        self._timers: dict[ObjectKey, asyncio.TimerHandle] = {}
        self.known: set[ObjectKey] = set()
        self.last_success = time.monotonic()

    def add(self, key: ObjectKey) -> None:
        """An object needs a pass, as soon as may be."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)
            QUEUE.set(len(self._waiting))

    def add_later(self, key: ObjectKey, seconds: float) -> None:
        """An object needs a pass after a while, unless it gets one before."""
        if key in self._waiting or key in self._timers:
            return
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def forget(self, key: ObjectKey) -> None:
        """An object is gone."""
        self.known.discard(key)
        self._failures.pop(key, None)

    async def work(self, make_pass: Pass) -> None:
        """Make passes for ever; several may run side by side. What is not an ApiError ends the worker."""
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy.add(key)
            QUEUE.set(len(self._waiting))
            try:
                await self._one(key, make_pass)
            finally:
                self._busy.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def resync(self) -> None:
        """Give every known object a pass now and then: no lost event is lost for good."""
        while True:
            await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))
            for key in list(self.known):
                self.add(key)
            if not self.known:
                self.last_success = time.monotonic()

    async def _one(self, key: ObjectKey, make_pass: Pass) -> None:
        started = time.perf_counter()
        try:
            changed = await make_pass(key)
        except ApiError as error:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (count - 1)) * random.uniform(0.5, 1.0)
            FAILURES.inc()
            logger.warning("%s: %s; trying again in %.1f s", key, error, delay)
            self.add_later(key, delay)
            return
        self._failures.pop(key, None)
        self.last_success = time.monotonic()
        PASSES.inc()
        SECONDS.observe(time.perf_counter() - started)
        if changed:
            self.add_later(key, FIRST_DELAY)

    def _due(self, key: ObjectKey) -> None:
        self._timers.pop(key, None)
        self.add(key)
