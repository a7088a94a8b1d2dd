"""The queue of objects to reconcile, and its workers: one worker an object at a time, failures with back-off."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Set

from plimsoll_cluster.keys import Key
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.metrics import FAILURES, PASSES, QUEUE, SECONDS
from plimsoll_operator.spec.identity import KIND
from plimsoll_telemetry.log_subject import SUBJECT, LogSubject

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0
RESYNC_SECONDS = 60.0
RESYNCED_A_SECOND = 10.0
"""The most objects a second that `resync` queues. At this rate it takes less than a hundredth of a core."""
WORKERS = 16

Pass = Callable[[Key], Awaitable[ReconcileResult]]


class WorkQueue:
    """Objects that wait for a reconcile, each once; one that changes during its reconcile waits again.

    Objects of the kinds `first` precede all others, even if many of those wait for a slow API server.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, first: Set[str] = frozenset()) -> None:
        self._clock = clock
        self._first = first
        self._numbers = itertools.count()
        self._ready: asyncio.PriorityQueue[tuple[bool, int, Key]] = asyncio.PriorityQueue()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._known: set[Key] = set()
        self.last_success = clock()

    def add(self, key: Key) -> None:
        """Queue an object for a reconcile as soon as possible."""
        self._known.add(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait((key.kind not in self._first, next(self._numbers), key))
            QUEUE.set(len(self._waiting))

    def add_all(self, keys: Iterable[Key]) -> None:
        """Queue objects for a reconcile."""
        for key in keys:
            self.add(key)

    def add_later(self, key: Key, seconds: float) -> None:
        """Queue an object after some seconds, instead of at a time set before. Do nothing if it is queued already."""
        if key in self._waiting or key in self._again:
            return
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._due, key)

    def add_within(self, key: Key, seconds: float) -> None:
        """Queue an object after this many seconds, unless it is queued already or due earlier."""
        timer = self._timers.get(key)
        if timer is None or timer.when() > asyncio.get_running_loop().time() + seconds:
            self._known.add(key)
            self.add_later(key, seconds)

    async def work(self, make_pass: Pass) -> None:
        """Reconcile objects forever; several workers may run at a time. Raise NotLeaderError."""
        while True:
            _, _, key = await self._ready.get()
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
            await asyncio.sleep(0)  # A reconcile of a settled object never yields, and other tasks must run.

    async def resync(self) -> None:
        """Queue every known object about once in `RESYNC_SECONDS`, less often if there are many. A reconcile without
        changes only compares data in memory.
        """
        while True:
            keys = list(self._known)
            seconds = max(RESYNC_SECONDS, len(keys) / RESYNCED_A_SECOND)
            pause = seconds * random.uniform(0.9, 1.1) / max(1, len(keys))
            for key in keys:
                await asyncio.sleep(pause)
                if key in self._known:
                    self.add(key)
            if not keys:
                await asyncio.sleep(pause)
                self.last_success = self._clock()

    def check_integrity(self) -> None:
        """Raise AssertionError if an object is in two states, or is queued, in work or delayed without being known."""
        assert not self._waiting & self._busy
        assert self._again <= self._busy
        assert not self._waiting & self._timers.keys()
        assert self._ready.qsize() == len(self._waiting)
        assert self._waiting | self._busy | self._timers.keys() <= self._known

    async def _one(self, key: Key, make_pass: Pass) -> None:
        model = str(key.object) if key.kind == KIND else ""
        token = SUBJECT.set(LogSubject(model=model, object_=str(key)))
        try:
            await self._reconcile(key, make_pass)
        finally:
            SUBJECT.reset(token)

    async def _reconcile(self, key: Key, make_pass: Pass) -> None:
        started = time.perf_counter()
        try:
            result = await make_pass(key)
        except NotLeaderError:
            raise
        except ApiError as error:
            self._failed(key, str(error))
            return
        except Exception:  # One unusual object must not stop the work on all others.
            logger.exception("%s: the reconcile failed", key)
            self._failed(key, "an error of the operator itself; please report it")
            return
        if result.put_off and result.again is not None:
            self.add_later(key, result.again.total_seconds())
            return
        self._failures.pop(key, None)
        self.last_success = self._clock()
        PASSES.labels(key.kind).inc()
        SECONDS.observe(time.perf_counter() - started)
        if result.gone:
            self._forget(key)
        elif result.again is not None:
            self.add_later(key, result.again.total_seconds())

    def _failed(self, key: Key, why: str) -> None:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(count - 1, 16)) * random.uniform(0.5, 1.0)
        FAILURES.labels(key.kind).inc()
        logger.warning("%s: %s; trying again in %.1f s", key, why, delay)
        self.add_later(key, delay)

    def _forget(self, key: Key) -> None:
        if key not in self._again:
            self._known.discard(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
