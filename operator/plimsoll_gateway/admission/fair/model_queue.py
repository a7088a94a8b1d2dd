"""Admission of one model's requests: as many as its ready replicas accept; the others wait in a fair queue.

Without API keys there are no flows to share between, and each request passes. With keys, the key with the most requests
would fill the replicas' own queues, which are first come, first served. Those are therefore kept short, and the order
is decided here.

If a model has no ready replica but one is expected, its queue is closed: requests with and without keys are held. When
it opens, they are admitted in fair order, and later requests queue behind them.

A model has one queue for all of its served names. While a changed list of names rolls out, some replicas do not serve
all of them. Each name is therefore a lane, limited by the replicas that serve the name; all lanes together are limited
by the replicas that serve any of the names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from plimsoll_gateway.admission.fair.fair_queue import Entry, FairQueue, Share
from plimsoll_gateway.errors.refusals import crowded_out


@dataclass(slots=True)
class Lane:
    """The requests for one served name: `users` in all, of which `running` are admitted.

    `closed_since`: loop time since when no ready replica serves the name although one is expected; else None.
    """

    name: str
    users: int = 0
    running: int = 0
    closed_since: float | None = None

    def note(self, *, closed: bool) -> None:
        """Record whether the lane is closed."""
        if not closed:
            self.closed_since = None
        elif self.closed_since is None:
            self.closed_since = asyncio.get_running_loop().time()

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        assert 0 <= self.running <= self.users, f"{self.running} of {self.users} requests are running"
        assert self.users, "a lane without requests exists"


WAITING_PER_PLACE = 16
"""The most waiting requests for each request that the model's replicas accept at the same time. The last one in the
queue waits about as long as 16 outputs take.
"""

NOBODY = Share("")
"""The share of requests without an API key."""

LOOK_SECONDS = 1.0  # shortest time between two checks whether an open queue has closed

Waiter = asyncio.Future[bool]
"""True if the request was admitted in its turn, False if it has waited for the longest time allowed and proceeds
anyway.
"""


class Capacity(Protocol):
    """The number of requests that a model accepts, by served name."""

    def now(self, name: str) -> int | None:
        """Return how many requests the ready replicas of a served name accept at the same time.

        Without a ready replica: 0 if one is expected, so that requests wait for it, else None.
        """

    def together(self, names: Collection[str]) -> int:
        """Return how many requests the ready replicas that serve any of these names of one model accept at the same
        time.
        """

    def later(self, name: str) -> int:
        """Return how many requests the model of a name accepts at the same time, once it has its most replicas."""


class ModelQueue:
    """The running and waiting requests of one model. Use on the event loop only.

    `lanes`: by served name, those with requests.
    """

    def __init__(self, capacity: Capacity, most: int, patience: float, held: Callable[[int], None]) -> None:
        self.queue: FairQueue[Waiter] = FairQueue()
        self.lanes: dict[str, Lane] = {}
        self._capacity = capacity
        self._most = most
        self._patience = patience
        self._tell_held = held
        self._told = 0

    @property
    def running(self) -> int:
        """Number of running requests under any name."""
        return sum(lane.running for lane in self.lanes.values())

    def join(self, name: str) -> Lane:
        """Count a new request in the `users` of the lane of this name. It neither waits nor runs yet."""
        lane = self.lanes.setdefault(name, Lane(name))
        lane.users += 1
        return lane

    def part(self, lane: Lane) -> None:
        """Remove a request, which no longer waits or runs, from the `users` of the lane."""
        lane.users -= 1
        if not lane.users:
            del self.lanes[lane.name]

    def push(self, lane: Lane, share: Share, cost: int) -> Entry[Waiter]:
        """Return the entry of a request. It is admitted immediately if nothing waits and the model accepts one more in
        this lane, else queued.

        Raises Refusal 503 for a request with a key if the queue is full and no other request is evicted.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()
        if not self.queue:
            if self._is_open(lane):
                lane.running += 1
                waiter.set_result(True)
                return self.queue.serve(share, cost, waiter, lane.name)
        elif share is not NOBODY:
            self._make_room(lane, share, cost)
        entry = self.queue.push(share, cost, waiter, lane.name)
        self.dispatch()
        return entry

    def passes(self, lane: Lane) -> bool:
        """Return whether a request without a key can skip the queue."""
        return not self.queue.waiting((lane.name,)) and self._capacity.now(lane.name) != 0

    def dispatch(self) -> None:
        """Admit waiting requests while the model accepts more. If no replica is expected, admit all: each gets an
        error later.
        """
        bounds = self._look()
        together = self._together(bounds)
        while self.queue and (entry := self.queue.pop(self._open(bounds, together))) is not None:
            if entry.item.cancelled():  # its client has disconnected, but its task has not run yet
                self.queue.settle(entry, 0)
                continue
            self.lanes[entry.lane].running += 1
            entry.item.set_result(True)
        self._count()

    def leave(self, entry: Entry[Waiter], cost: int) -> None:
        """End an admitted request at its actual cost."""
        self.queue.settle(entry, cost)
        self.ended(self.lanes[entry.lane])

    def ended(self, lane: Lane) -> None:
        """Record that a running request has ended."""
        lane.running -= 1
        if self.queue:
            self.dispatch()

    def patience(self, lane: Lane, since: float) -> float:
        """Return the seconds after which to check a waiting request that arrived at `since` again.

        In a closed lane this is the time until it stops being held; 0 or less: it has been held for long enough.
        """
        if lane.closed_since is None:
            return max(self._patience, LOOK_SECONDS)
        return max(since, lane.closed_since) + self._patience - asyncio.get_running_loop().time()

    def tire(self, entry: Entry[Waiter]) -> None:
        """Stop holding a request: it proceeds, and gets the error that no replica is ready."""
        self.queue.remove(entry)
        self.lanes[entry.lane].running += 1
        entry.item.set_result(False)
        self._count()

    def abandon(self, entry: Entry[Waiter]) -> None:
        """Remove a waiting or admitted request that will not proceed: its client disconnected, or it was evicted."""
        if entry.waiting:
            self.queue.remove(entry)
            self._count()
        elif (
            not entry.item.cancelled() and entry.item.exception() is None
        ):  # admitted, but cancelled before its task ran
            if entry.item.result():
                self.leave(entry, 0)
            else:
                self.ended(self.lanes[entry.lane])

    def _make_room(self, lane: Lane, share: Share, cost: int) -> None:
        """Evict a waiting request if the queue is full. Open lanes share one limit, closed lanes another. Raises
        Refusal 503 if the new request must be rejected instead.
        """
        closed = self._capacity.now(lane.name) == 0
        rivals = [name for name in self.lanes if (self._capacity.now(name) == 0) is closed]
        waiting = self.queue.waiting(rivals)
        if not waiting or waiting < self._room(lane.name, rivals) or self._lets_in(lane):
            return
        victim = self.queue.crowd(share, cost, rivals)
        if victim is None:
            raise crowded_out(lane.name)
        self.queue.remove(victim)
        if not victim.item.done():
            victim.item.set_exception(crowded_out(victim.lane))

    def _room(self, name: str, rivals: Collection[str]) -> int:
        if self._capacity.now(name) is None:
            return self._most
        places = self._capacity.together(rivals) or self._capacity.later(name)
        return max(1, min(self._most, WAITING_PER_PLACE * places))

    def _lets_in(self, lane: Lane) -> bool:
        """Return whether a request that arrives now in this lane starts immediately."""
        return self._is_open(lane) and not self.queue.waiting((lane.name,))

    def _is_open(self, lane: Lane) -> bool:
        """Return whether the lane admits a request now."""
        bounds = self._look()
        return lane.name in self._open(bounds, self._together(bounds))

    def _look(self) -> Mapping[str, int | None]:
        """Return `Capacity.now` of each lane by its name, and update which lanes are closed."""
        bounds = {name: self._capacity.now(name) for name in self.lanes}
        for name, most in bounds.items():
            self.lanes[name].note(closed=most == 0)
        return bounds

    def _together(self, bounds: Mapping[str, int | None]) -> int:
        """Return how many requests all lanes accept together. If there is one lane, its own number is used."""
        if len(bounds) == 1:
            return next(iter(bounds.values())) or 0
        return self._capacity.together(bounds)

    def _open(self, bounds: Mapping[str, int | None], together: int) -> list[str]:
        """Return the lanes that admit a request now."""
        full = self.running >= together
        return [name for name, most in bounds.items() if most is None or (not full and self.lanes[name].running < most)]

    def _count(self) -> None:
        held = self.queue.waiting([lane.name for lane in self.lanes.values() if lane.closed_since is not None])
        if held != self._told:
            change, self._told = held - self._told, held
            self._tell_held(change)

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible, or if a request waits in an open queue."""
        self.queue.check_integrity()
        assert self.queue.waiting(self.lanes) == len(self.queue), "a request waits in a lane that does not exist"
        bounds, together = {name: self._capacity.now(name) for name in self.lanes}, self._capacity.together(self.lanes)
        for lane in self.lanes.values():
            lane.check_integrity()
        assert not self.queue.waiting(self._open(bounds, together)), "a request waits in an open queue"
        held = self.queue.waiting([name for name, most in bounds.items() if most == 0])
        assert self._told == held, f"{held} requests are held, but {self._told} were reported"
