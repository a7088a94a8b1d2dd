"""The gates of all models, and a request's way through one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from plimsoll_gateway.admission.fair.fair_queue import Entry, Share
from plimsoll_gateway.admission.fair.model_queue import NOBODY, Capacity, Gate, Lane, Waiter
from plimsoll_gateway.discovery.routing_table import ObjectKey

Held = Callable[[ObjectKey, int], None]
"""Told that so many more requests for a model wait for a replica, or so many fewer."""

TICK = 0.001  # seconds that are none: what a timer may be early by


class Gates:
    """One gate for each model that is asked for now.

    `most`: requests with keys that may wait at any of them.
    `patience`: seconds that a request is held; then it goes on, and hears why.
    """

    def __init__(self, capacity: Capacity, most: int, patience: float, held: Held = lambda *_: None) -> None:
        self._capacity = capacity
        self._most = most
        self._patience = patience
        self._held = held
        self._gates: dict[ObjectKey, Gate] = {}

    def enter(self, key: ObjectKey, name: str, share: Share | None, cost: int) -> Turn:
        """For a request for `key` by that name: a context that waits for its turn. `share` None passes at once, unless
        the gate is closed to that name, or others were held there and still wait.
        """
        gate = self._gates.get(key)
        if gate is None:
            held = partial(self._held, key)
            gate = self._gates[key] = Gate(self._capacity, self._most, self._patience, held)
        return Turn(self, key, gate, name, share, cost)

    def wake(self) -> None:
        """Replicas have come or gone."""
        for gate in tuple(self._gates.values()):
            gate.dispatch()

    def leave(self, key: ObjectKey) -> None:
        """Somebody has left; a gate at which nobody is any more is forgotten."""
        if not self._gates[key].lanes:
            del self._gates[key]

    def waiting(self, key: ObjectKey) -> int:
        """Requests for a model, by whatever name, that wait for their turn."""
        gate = self._gates.get(key)
        return 0 if gate is None else len(gate.queue)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible, or somebody waits before an open gate."""
        for gate in self._gates.values():
            gate.check_integrity()


class Turn:
    """One request's turn: the block runs once it has come, and the next one's comes at its end."""

    def __init__(self, gates: Gates, key: ObjectKey, gate: Gate, name: str, share: Share | None, cost: int) -> None:
        self._gates = gates
        self._key = key
        self._gate = gate
        self._name = name
        self._share = share
        self._cost = cost
        self._lane: Lane | None = None
        self._entry: Entry[Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cost(self, tokens: int) -> None:
        """What the request has cost, now that it is known."""
        self._cost = tokens

    async def __aenter__(self) -> Self:
        lane = self._lane = self._gate.join(self._name)
        if self._share is None and self._gate.passes(lane):
            lane.running += 1
            return self
        try:
            entry = self._gate.push(lane, self._share or NOBODY, self._cost)
            try:
                in_turn = entry.item.result() if entry.item.done() else await self._wait(lane, entry)
            except BaseException:
                self._gate.abandon(entry)
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
            left = self._gate.patience(lane, since)
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
        assert self._lane is not None
        if self._entry is not None:
            self._gate.leave(self._entry, self._cost)
            self._entry = None
        else:
            self._gate.ended(self._lane)
        self._left(self._lane)

    def _left(self, lane: Lane) -> None:
        self._gate.part(lane)
        self._gates.leave(self._key)
