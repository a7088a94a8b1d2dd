"""The queues of all models, and the context of one request in its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Self

from plimsoll_gateway.admission.fair.fair_queue import Entry, Share
from plimsoll_gateway.admission.fair.model_queue import NOBODY, Capacity, Lane, ModelQueue, Waiter
from plimsoll_gateway.discovery.routing_table import ObjectKey

Held = Callable[[ObjectKey, int], None]
"""Called with a model's key and by how much its number of requests waiting for a replica has changed."""

TICK = 0.001  # seconds: tolerance for timers that fire early


class ModelQueues:
    """One queue for each model with requests.

    `most`: the most requests with keys that may wait in one queue.
    `patience`: the longest time in seconds that a request is held; after that it proceeds and gets an error.
    """

    def __init__(self, capacity: Capacity, most: int, patience: float, held: Held = lambda *_: None) -> None:
        self._capacity = capacity
        self._most = most
        self._patience = patience
        self._held = held
        self._queues: dict[ObjectKey, ModelQueue] = {}

    def enter(self, key: ObjectKey, name: str, share: Share | None, cost: int) -> Turn:
        """Return a context that waits until the request is admitted.

        With `share` None the request passes immediately, unless the queue is closed for the name or held requests still
        wait.
        """
        model_queue = self._queues.get(key)
        if model_queue is None:
            held = partial(self._held, key)
            model_queue = self._queues[key] = ModelQueue(self._capacity, self._most, self._patience, held)
        return Turn(self, key, model_queue, name, share, cost)

    def wake(self) -> None:
        """Admit waiting requests after replicas have changed."""
        for model_queue in tuple(self._queues.values()):
            model_queue.dispatch()

    def leave(self, key: ObjectKey) -> None:
        """Remove the queue of a model if it has no requests."""
        if not self._queues[key].lanes:
            del self._queues[key]

    def waiting(self, key: ObjectKey) -> int:
        """Return the number of requests for a model that wait, under any name."""
        model_queue = self._queues.get(key)
        return 0 if model_queue is None else len(model_queue.queue)

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible, or if a request waits in an open queue."""
        for model_queue in self._queues.values():
            model_queue.check_integrity()


class Turn:
    """Context of one request: the block runs after admission, and its end admits the next request."""

    def __init__(
        self,
        model_queues: ModelQueues,
        key: ObjectKey,
        model_queue: ModelQueue,
        name: str,
        share: Share | None,
        cost: int,
    ) -> None:
        self._queues = model_queues
        self._key = key
        self._queue = model_queue
        self._name = name
        self._share = share
        self._cost = cost
        self._lane: Lane | None = None
        self._entry: Entry[Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cost(self, tokens: int) -> None:
        """Record the actual cost of the request in tokens."""
        self._cost = tokens

    async def __aenter__(self) -> Self:
        lane = self._lane = self._queue.join(self._name)
        if self._share is None and self._queue.passes(lane):
            lane.running += 1
            return self
        try:
            entry = self._queue.push(lane, self._share or NOBODY, self._cost)
            try:
                in_turn = entry.item.result() if entry.item.done() else await self._wait(lane, entry)
            except BaseException:
                self._queue.abandon(entry)
                raise
        except BaseException:
            self._left(lane)
            raise
        self._entry = entry if in_turn else None
        return self

    async def _wait(self, lane: Lane, entry: Entry[Waiter]) -> bool:
        loop = asyncio.get_running_loop()
        since = loop.time()

        def look() -> None:
            left = self._queue.patience(lane, since)
            if left > TICK:
                self._timer = loop.call_later(left, look)
            elif not entry.item.done():
                self._queue.tire(entry)

        look()
        try:
            return await entry.item
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def __aexit__(self, *_: object) -> None:
        assert self._lane is not None
        if self._entry is not None:
            self._queue.leave(self._entry, self._cost)
            self._entry = None
        else:
            self._queue.ended(self._lane)
        self._left(self._lane)

    def _left(self, lane: Lane) -> None:
        self._queue.part(lane)
        self._queues.leave(self._key)
