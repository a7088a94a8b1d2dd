"""The way into a model: as many requests as its ready replicas take at once, the others in fair turns.

Without keys there is nobody to be fair to, and every request passes. With keys, whoever asks most would fill the
replicas' own queues, which go by arrival; so those are kept short, and the turn is decided here.

While a model that will have a replica has none, its queue is closed: requests are held, with and without keys. When it
opens they are let in as their turns come, and whoever comes meanwhile lines up behind them.

A model has one queue, whatever names it is asked by. Its replicas need not all answer to each of its names, as while a
changed list of names rolls out: so each name is a lane, which lets in what those replicas take that answer to it, and
all lanes together what those take that answer to any.
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
    """`users` are here, of whom `running` are under way. `closed_since`: when no replica answered to the name any more,
    in the loop's time, though one will; None while one answers, or none will.
    """

    name: str
    users: int = 0
    running: int = 0
    closed_since: float | None = None

    def note(self, *, closed: bool) -> None:
        """Whether it is closed now."""
        if not closed:
            self.closed_since = None
        elif self.closed_since is None:
            self.closed_since = asyncio.get_running_loop().time()

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        assert 0 <= self.running <= self.users, f"{self.running} of {self.users} are under way"
        assert self.users, "a lane in which nobody is is kept"


WAITING_PER_PLACE = 16
"""Requests that may wait for each that a model's replicas take at once: the last of them waits 16 answers long."""

NOBODY = Share("")
"""Whose requests are where there are no keys."""

LOOK_SECONDS = 1.0  # the least between two looks at whether an open queue has closed

Waiter = asyncio.Future[bool]
"""True: it is let in in its turn. False: it has waited for long enough, and goes on."""


class Capacity(Protocol):
    """How many requests a model takes at once, by served name."""

    def now(self, name: str) -> int | None:
        """Those of its ready replicas; 0 while one has yet to come, None where none will."""

    def together(self, names: Collection[str]) -> int:
        """Those of the ready replicas that answer to any of these names of a model."""

    def closed(self, name: str) -> bool:
        """Whether `now` is 0."""

    def later(self, name: str) -> int:
        """Those of the replicas that it may have."""


class ModelQueue:
    """The requests for a model, under way or waiting for their turn. Changed on the event loop only.

    `lanes` are the names by which somebody asks now.
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
        """Requests that are under way, by whatever name."""
        return sum(lane.running for lane in self.lanes.values())

    def join(self, name: str) -> Lane:
        """Somebody comes who asks by that name."""
        lane = self.lanes.setdefault(name, Lane(name))
        lane.users += 1
        return lane

    def part(self, lane: Lane) -> None:
        """Somebody has gone, who had joined."""
        lane.users -= 1
        if not lane.users:
            del self.lanes[lane.name]

    def push(self, lane: Lane, share: Share, cost: int) -> Entry[Waiter]:
        """Line up. Raises Refusal 503 where there is no room, unless somebody with more requests gives way."""
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
        """Whether a request that shares with nobody need not line up."""
        return not self.queue.waiting((lane.name,)) and not self._capacity.closed(lane.name)

    def dispatch(self) -> None:
        """Let in whoever's turn it is, while there is room. Where no replica will be there, all go on and hear why."""
        bounds = self._look()
        together = self._together(bounds)
        while self.queue and (entry := self.queue.pop(self._open(bounds, together))) is not None:
            if entry.item.cancelled():  # its client has gone, and its task has not noticed yet
                self.queue.settle(entry, 0)
                continue
            self.lanes[entry.lane].running += 1
            entry.item.set_result(True)
        self._count()

    def leave(self, entry: Entry[Waiter], cost: int) -> None:
        """A request that was let in has ended."""
        self.queue.settle(entry, cost)
        self.ended(self.lanes[entry.lane])

    def ended(self, lane: Lane) -> None:
        """One that was under way is no longer."""
        lane.running -= 1
        if self.queue:
            self.dispatch()

    def patience(self, lane: Lane, since: float) -> float:
        """Seconds for which a request that came at `since` is held if no replica comes; looked at again by then."""
        if lane.closed_since is None:
            return max(self._patience, LOOK_SECONDS)
        return max(since, lane.closed_since) + self._patience - asyncio.get_running_loop().time()

    def tire(self, entry: Entry[Waiter]) -> None:
        """A request has been held for long enough: it goes on, to be told why there is no replica."""
        self.queue.remove(entry)
        self.lanes[entry.lane].running += 1
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
                self.ended(self.lanes[entry.lane])

    def _make_room(self, lane: Lane, share: Share, cost: int) -> None:
        """Lanes that are open bound together what waits in them, and so do those that are closed. Raises Refusal."""
        closed = self._capacity.closed(lane.name)
        rivals = [name for name in self.lanes if self._capacity.closed(name) is closed]
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
        """Whether who comes now has its turn at once."""
        return self._is_open(lane) and not self.queue.waiting((lane.name,))

    def _is_open(self, lane: Lane) -> bool:
        """Whether it lets somebody in now; nearly always it is the only one."""
        if len(self.lanes) > 1:
            bounds = self._look()
            return lane.name in self._open(bounds, self._together(bounds))
        most = self._capacity.now(lane.name)
        lane.note(closed=most == 0)
        return most is None or lane.running < most

    def _look(self) -> Mapping[str, int | None]:
        """How many each lane takes, and since when there have been none."""
        bounds = {name: self._capacity.now(name) for name in self.lanes}
        for name, most in bounds.items():
            self.lanes[name].note(closed=most == 0)
        return bounds

    def _together(self, bounds: Mapping[str, int | None]) -> int:
        """How many they take in all; nearly always they are one, which has been asked already."""
        if len(bounds) == 1:
            return next(iter(bounds.values())) or 0
        return self._capacity.together(bounds)

    def _open(self, bounds: Mapping[str, int | None], together: int) -> list[str]:
        """The lanes that let somebody in now."""
        full = self.running >= together
        return [name for name, most in bounds.items() if most is None or (not full and self.lanes[name].running < most)]

    def _count(self) -> None:
        held = self.queue.waiting([lane.name for lane in self.lanes.values() if lane.closed_since is not None])
        if held != self._told:
            change, self._told = held - self._told, held
            self._tell_held(change)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or a request waits in an open queue."""
        self.queue.check_integrity()
        assert self.queue.waiting(self.lanes) == len(self.queue), "a request waits in a lane that does not exist"
        bounds, together = {name: self._capacity.now(name) for name in self.lanes}, self._capacity.together(self.lanes)
        for lane in self.lanes.values():
            lane.check_integrity()
        assert not self.queue.waiting(self._open(bounds, together)), "a request waits in an open queue"
        held = self.queue.waiting([name for name, most in bounds.items() if most == 0])
        assert self._told == held, f"{held} are held, and {self._told} were told of"
