"""The way into a model: as many requests as its ready replicas take at once, the others in fair turns.

Without keys there is nobody to be fair to, and every request passes. With keys, whoever asks most would fill the
replicas' own queues, which go by arrival; so those are kept short, and the turn is decided here.

While a model that will have a replica has none, its gate is closed: requests are held, with and without keys. When it
opens they are let in as their turns come, and whoever comes meanwhile lines up behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from plimsoll_gateway.errors import crowded_out
from plimsoll_gateway.fair.queue import Entry, FairQueue, Share
from plimsoll_gateway.table import ObjectKey

WAITING_PER_PLACE = 16
"""Requests that may wait for each that a model's replicas take at once: the last of them waits 16 answers long."""

NOBODY = Share("")
"""Whose requests are where there are no keys."""


class Capacity(Protocol):
    """How many requests a model takes at once, by served name."""

    def now(self, name: str) -> int | None:
        """Those of its ready replicas; 0 while one has yet to come, None where none will."""

    def closed(self, name: str) -> bool:
        """Whether that is 0."""

    def later(self, name: str) -> int:
        """Those of the replicas that it may have."""


Held = Callable[[ObjectKey, int], None]
"""Told that so many more requests for a model wait for a replica, or so many fewer."""

Way = tuple[ObjectKey, str]
"""A model, and the name by which it is asked."""

Waiter = asyncio.Future[bool]
"""True: it is let in in its turn. False: it has waited for long enough, and goes on."""

TICK = 0.001  # seconds that are none: what a timer may be early by
LOOK_SECONDS = 1.0  # the least between two looks at whether a gate that is open has closed


class Gates:
    """One gate for each name by which a model is asked now: its replicas need not all answer to each of its names.

    `most`: requests with keys that may wait at any of them.
    `patience`: seconds that a request is held; then it goes on, and hears why.
    """

    def __init__(self, capacity: Capacity, most: int, patience: float, held: Held = lambda *_: None) -> None:
        self._capacity = capacity
        self._most = most
        self._patience = patience
        self._held = held
        self._gates: dict[Way, Gate] = {}

    def enter(self, key: ObjectKey, name: str, share: Share | None, cost: int) -> Turn:
        """For a request for `key` by that name: a context that waits for its turn. `share` None passes at once, unless
        the gate is closed, or others were held there and still wait.
        """
        way = (key, name)
        gate = self._gates.get(way)
        if gate is None:
            held = partial(self._held, key)
            gate = self._gates[way] = Gate(name, self._capacity, self._most, self._patience, held)
        return Turn(self, way, gate, share, cost)

    def wake(self) -> None:
        """Replicas have come or gone."""
        for gate in tuple(self._gates.values()):
            gate.dispatch()

    def leave(self, way: Way) -> None:
        """Somebody has left; a gate at which nobody is any more is forgotten."""
        gate = self._gates[way]
        if gate.idle:
            del self._gates[way]

    def waiting(self, key: ObjectKey) -> int:
        """Requests for a model, by whatever name, that wait for their turn."""
        return sum(len(gate.queue) for (model, _), gate in self._gates.items() if model == key)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or somebody waits before an open gate."""
        for gate in self._gates.values():
            gate.check_integrity()


class Gate:
    """The requests for a model by one name, under way or waiting for their turn. Changed on the event loop only."""

    def __init__(self, name: str, capacity: Capacity, most: int, patience: float, held: Callable[[int], None]) -> None:
        self.name = name
        self.queue: FairQueue[Waiter] = FairQueue()
        self.running = 0
        self.users = 0
        self._capacity = capacity
        self._most = most
        self._patience = patience
        self._tell_held = held
        self._told = 0
        self._closed_since: float | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return self.users == 0

    def push(self, share: Share, cost: int) -> Entry[Waiter]:
        """Line up. Raises Refusal 503 where there is no room, unless somebody with more requests gives way."""
        if share is not NOBODY and self.queue and len(self.queue) >= self._room():
            victim = self.queue.crowd(share, cost)
            if victim is None:
                raise crowded_out(self.name)
            self.queue.remove(victim)
            if not victim.item.done():
                victim.item.set_exception(crowded_out(self.name))
        entry = self.queue.push(share, cost, asyncio.get_running_loop().create_future())
        self.dispatch()
        return entry

    def passes(self) -> bool:
        """Whether a request that shares with nobody need not line up."""
        return not self.queue and not self._capacity.closed(self.name)

    def dispatch(self) -> None:
        """Let in whoever's turn it is, while there is room. Where no replica will be there, all go on and hear why."""
        most = self._look()
        while (most is None or self.running < most) and (entry := self.queue.pop()) is not None:
            if entry.item.cancelled():  # its client has gone, and its task has not noticed yet
                self.queue.settle(entry, 0)
                continue
            self.running += 1
            entry.item.set_result(True)
        self._count()

    def leave(self, entry: Entry[Waiter], cost: int) -> None:
        """A request that was let in has ended."""
        self.queue.settle(entry, cost)
        self.ended()

    def ended(self) -> None:
        """One that was under way is no longer."""
        self.running -= 1
        if self.queue:
            self.dispatch()

    def patience(self, since: float) -> float:
        """Seconds for which a request that came at `since` is held if no replica comes; looked at again by then."""
        if self._closed_since is None:
            return max(self._patience, LOOK_SECONDS)
        return max(since, self._closed_since) + self._patience - asyncio.get_running_loop().time()

    def tire(self, entry: Entry[Waiter]) -> None:
        """A request has been held for long enough: it goes on, to be told why there is no replica."""
        self.queue.remove(entry)
        self.running += 1
        entry.item.set_result(False)
        self._count()

    def abandon(self, entry: Entry[Waiter]) -> None:
        """A request that will not go on: its client has gone, or it has given way."""
        if entry.waiting:
            self.queue.remove(entry)
            self._count()
        elif not entry.item.cancelled() and entry.item.exception() is None:  # let in, and gone before it noticed
            if entry.item.result():
                self.leave(entry, 0)
            else:
                self.ended()

    def _room(self) -> int:
        most = self._capacity.now(self.name)
        if most is None:
            return self._most
        return max(1, min(self._most, WAITING_PER_PLACE * (most or self._capacity.later(self.name))))

    def _look(self) -> int | None:
        """What the capacity is, and since when there has been none."""
        most = self._capacity.now(self.name)
        if most != 0:
            self._closed_since = None
        elif self._closed_since is None:
            self._closed_since = asyncio.get_running_loop().time()
        return most

    def _count(self) -> None:
        held = len(self.queue) if self._closed_since is not None else 0
        if held != self._told:
            change, self._told = held - self._told, held
            self._tell_held(change)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or somebody waits before an open gate."""
        self.queue.check_integrity()
        most = self._capacity.now(self.name)
        assert self.running >= 0, f"{self.running} are under way"
        assert not self.queue or (most is not None and self.running >= most), "somebody waits before an open gate"
        held = len(self.queue) if most == 0 else 0
        assert self._told == held, f"{held} are held, and {self._told} were told of"


class Turn:
    """One request's turn: the block runs once it has come, and the next one's comes at its end."""

    def __init__(self, gates: Gates, way: Way, gate: Gate, share: Share | None, cost: int) -> None:
        self._gates = gates
        self._way = way
        self._gate = gate
        self._share = share
        self._cost = cost
        self._entry: Entry[Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cost(self, tokens: int) -> None:
        """What the request has cost, now that it is known."""
        self._cost = tokens

    async def __aenter__(self) -> Self:
        self._gate.users += 1
        if self._share is None and self._gate.passes():
            self._gate.running += 1
            return self
        try:
            entry = self._gate.push(self._share or NOBODY, self._cost)
            try:
                in_turn = entry.item.result() if entry.item.done() else await self._wait(entry)
            except BaseException:
                self._gate.abandon(entry)
                raise
        except BaseException:
            self._left()
            raise
        self._entry = entry if in_turn else None
        return self

    async def _wait(self, entry: Entry[Waiter]) -> bool:
        loop = asyncio.get_running_loop()
        since = loop.time()

        def look() -> None:
            left = self._gate.patience(since)
            if left > TICK:
                self._timer = loop.call_later(left, look)
            elif not entry.item.done():
                self._gate.tire(entry)

        look()
        try:
            return await entry.item
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._gate.leave(self._entry, self._cost)
            self._entry = None
        else:
            self._gate.ended()
        self._left()

    def _left(self) -> None:
        self._gate.users -= 1
        self._gates.leave(self._way)
