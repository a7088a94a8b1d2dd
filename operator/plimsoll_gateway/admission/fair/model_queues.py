"""The queues of all models, and the way of one request through its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from plimsoll_gateway.admission.fair.fair_queue import Entry, Share
from plimsoll_gateway.admission.fair.model_queue import NOBODY, Capacity, Lane, ModelQueue, Waiter
from plimsoll_gateway.discovery.routing_table import ObjectKey

Held = Callable[[ObjectKey, int], None]
"""Called with a model's key and by how much its number of requests waiting for a replica has changed."""

TICK = 0.001  # seconds: tolerance for timers that fire early


@dataclass(slots=True)
class Turn:
    """An admitted request. `cost`: the estimated cost in tokens; replace it by the actual one when it is known."""

    cost: int


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

    @asynccontextmanager
    async def enter(self, key: ObjectKey, name: str, share: Share | None, cost: int) -> AsyncIterator[Turn]:
        """Wait until the request is admitted; the end of the context admits the next one.

        With `share` None the request passes immediately, unless the queue is closed for the name or held requests still
        wait.
        """
        queue = self._queues.get(key)
        if queue is None:
            held = partial(self._held, key)
            queue = self._queues[key] = ModelQueue(self._capacity, self._most, self._patience, held)
        turn, lane = Turn(cost), queue.join(name)
        try:
            entry = await _admit(queue, lane, share, cost)
            try:
                yield turn
            finally:
                if entry is None:
                    queue.ended(lane)
                else:
                    queue.leave(entry, turn.cost)
        finally:
            queue.part(lane)
            if not queue.lanes:
                del self._queues[key]

    def wake(self) -> None:
        """Admit waiting requests after replicas have changed."""
        for model_queue in tuple(self._queues.values()):
            model_queue.dispatch()

    def waiting(self, key: ObjectKey) -> int:
        """Return the number of requests for a model that wait, under any name."""
        model_queue = self._queues.get(key)
        return 0 if model_queue is None else len(model_queue.queue)

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible, or if a request waits in an open queue."""
        for model_queue in self._queues.values():
            model_queue.check_integrity()


async def _admit(queue: ModelQueue, lane: Lane, share: Share | None, cost: int) -> Entry[Waiter] | None:
    """Return the request's entry after its admission; None if it skipped the queue or was held for too long."""
    if share is None and queue.passes(lane):
        lane.running += 1
        return None
    entry = queue.push(lane, share or NOBODY, cost)
    try:
        admitted = entry.item.result() if entry.item.done() else await _wait(queue, lane, entry)
    except BaseException:
        queue.abandon(entry)
        raise
    return entry if admitted else None


async def _wait(queue: ModelQueue, lane: Lane, entry: Entry[Waiter]) -> bool:
    loop = asyncio.get_running_loop()
    since = loop.time()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left = queue.patience(lane, since)
        if left > TICK:
            timer = loop.call_later(left, look)
        elif not entry.item.done():
            queue.tire(entry)

    look()
    try:
        return await entry.item
    finally:
        if timer is not None:
            timer.cancel()
