"""The way into a model: as many requests as its ready replicas take at once, the others in fair turns.

Without keys there is nobody to be fair to, and every request passes. With keys, whoever asks most would fill the
replicas' own queues, which go by arrival; so those are kept short, and the turn is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from plimsoll_gateway.errors import crowded_out
from plimsoll_gateway.fair.queue import Entry, FairQueue, Share
from plimsoll_gateway.table import ObjectKey

WAITING_PER_PLACE = 16
"""Requests that may wait for each that a model's replicas take at once: the last of them waits 16 answers long."""

Capacity = Callable[[str], int | None]
"""By served name: how many requests its ready replicas take at once; None where no replica is ready."""

Waiter = asyncio.Future[None]


class Gates:
    """One gate for each model that is asked now. `most`: requests that may wait at any of them."""

    def __init__(self, capacity: Capacity, most: int) -> None:
        self._capacity = capacity
        self._most = most
        self._gates: dict[ObjectKey, Gate] = {}

    def enter(self, key: ObjectKey, name: str, share: Share | None, cost: int) -> Turn:
        """For a request for `key` by that name: a context that waits for its turn. `share` None passes at once."""
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(name, self._capacity, self._most)
        return Turn(self, key, gate, share, cost)

    def wake(self) -> None:
        """Replicas have come or gone."""
        for gate in tuple(self._gates.values()):
            gate.dispatch()

    def leave(self, key: ObjectKey) -> None:
        """Somebody has left; a gate at which nobody is any more is forgotten."""
        gate = self._gates[key]
        if gate.idle:
            del self._gates[key]

    def waiting(self, key: ObjectKey) -> int:
        """Requests for a model that wait for their turn."""
        gate = self._gates.get(key)
        return 0 if gate is None else len(gate.queue)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or somebody waits before an open gate."""
        for gate in self._gates.values():
            gate.check_integrity()


class Gate:
    """The requests for one model that are under way or wait for their turn. Changed on the event loop only."""

    def __init__(self, name: str, capacity: Capacity, most: int) -> None:
        self.name = name
        self.queue: FairQueue[Waiter] = FairQueue()
        self.running = 0
        self.users = 0
        self._capacity = capacity
        self._most = most

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return self.users == 0

    def push(self, share: Share, cost: int) -> Entry[Waiter]:
        """Line up. Raises Refusal 503 where there is no room, unless somebody with more requests gives way."""
        if self.queue and len(self.queue) >= self._room():
            victim = self.queue.crowd(share, cost)
            if victim is None:
                raise crowded_out(self.name)
            self.queue.remove(victim)
            if not victim.item.done():
                victim.item.set_exception(crowded_out(self.name))
        entry = self.queue.push(share, cost, asyncio.get_running_loop().create_future())
        self.dispatch()
        return entry

    def dispatch(self) -> None:
        """Let in whoever's turn it is, while there is room. Where no replica is ready, all go on and hear why."""
        most = self._capacity(self.name)
        while (most is None or self.running < most) and (entry := self.queue.pop()) is not None:
            if entry.item.cancelled():  # its client has gone, and its task has not noticed yet
                self.queue.settle(entry, 0)
                continue
            self.running += 1
            entry.item.set_result(None)

    def leave(self, entry: Entry[Waiter], cost: int) -> None:
        """A request that was let in has ended."""
        self.running -= 1
        self.queue.settle(entry, cost)
        if self.queue:
            self.dispatch()

    def abandon(self, entry: Entry[Waiter]) -> None:
        """A request that will not go on: its client has gone, or it has given way."""
        if entry.waiting:
            self.queue.remove(entry)
        elif not entry.item.cancelled() and entry.item.exception() is None:  # let in, and gone before it noticed
            self.leave(entry, 0)

    def _room(self) -> int:
        most = self._capacity(self.name)
        return self._most if most is None else max(1, min(self._most, WAITING_PER_PLACE * most))

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or somebody waits before an open gate."""
        self.queue.check_integrity()
        most = self._capacity(self.name)
        assert self.running >= 0, f"{self.running} are under way"
        assert not self.queue or (most is not None and self.running >= most), "somebody waits before an open gate"


class Turn:
    """One request's turn: the block runs once it has come, and the next one's comes at its end."""

    def __init__(self, gates: Gates, key: ObjectKey, gate: Gate, share: Share | None, cost: int) -> None:
        self._gates = gates
        self._key = key
        self._gate = gate
        self._share = share
        self._cost = cost
        self._entry: Entry[Waiter] | None = None

    def cost(self, tokens: int) -> None:
        """What the request has cost, now that it is known."""
        self._cost = tokens

    async def __aenter__(self) -> Self:
        self._gate.users += 1
        if self._share is None:
            return self
        try:
            entry = self._gate.push(self._share, self._cost)
            try:
                if not entry.item.done():
                    await entry.item
            except BaseException:
                self._gate.abandon(entry)
                raise
        except BaseException:
            self._left()
            raise
        self._entry = entry
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._gate.leave(self._entry, self._cost)
            self._entry = None
        self._left()

    def _left(self) -> None:
        self._gate.users -= 1
        self._gates.leave(self._key)
