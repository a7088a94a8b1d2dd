"""Requests that wait for their model to wake, limited in number, bytes and time."""

from __future__ import annotations

import asyncio
from collections import deque

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.engines.base import Resident
from plimsoll_runtime.residency.errors import Refused
from plimsoll_runtime.residency.sizes import size_text


class Waiter:
    """One waiting request. `future` gets the resident model, which then counts it in flight, or an error."""

    def __init__(self, since: float, size: int) -> None:
        self.since = since
        self.size = size
        self.future: asyncio.Future[Resident] = asyncio.get_running_loop().create_future()


class Bounds:
    """The limits of all wake queues of a host together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self.count = 0
        self.size = 0

    def enter(self, size: int, retry_after: float) -> None:
        """Count a request. Raises Refused if a limit is reached."""
        if self.count >= self._most:
            raise Refused(
                "too_many_waiting",
                f"{self.count} requests already wait for models to wake, the limit (--max-held)",
                retry_after,
            )
        if self.size + size > self._most_bytes:
            raise Refused(
                "too_many_waiting",
                f"requests of {size_text(self.size)} already wait for models to wake; this one's "
                f"{size_text(size)} exceed the limit (--max-held-bytes)",
                retry_after,
            )
        self.count += 1
        self.size += size

    def leave(self, size: int) -> None:
        """Remove a request from the count."""
        self.count -= 1
        self.size -= size


class Waiters:
    """The waiting requests of one model, in order of arrival."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._queue: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def since(self) -> float | None:
        """Arrival of the first request; None if none waits."""
        return self._queue[0].since if self._queue else None

    def add(self, now: float, size: int, retry_after: float) -> Waiter:
        """Add a request. Raises Refused if too many wait."""
        self._bounds.enter(size, retry_after)
        waiter = Waiter(now, size)
        self._queue.append(waiter)
        return waiter

    def give_up(self, waiter: Waiter) -> None:
        """Remove a request, unless it was started or refused before."""
        if waiter in self._queue:
            self._queue.remove(waiter)
            self._bounds.leave(waiter.size)

    def let_in(self, resident: Resident, now: float) -> list[float]:
        """Start all requests; return the seconds that each has waited."""
        waited = []
        while self._queue:
            waiter = self._leave()
            if not waiter.future.done():
                resident.enter()
                waiter.future.set_result(resident)
                waited.append(now - waiter.since)
        return waited

    def refuse(self, error: PlimsollError) -> int:
        """Refuse all requests with an error; return their number."""
        count = len(self._queue)
        while self._queue:
            waiter = self._leave()
            if not waiter.future.done():
                waiter.future.set_exception(error)
        return count

    def _leave(self) -> Waiter:
        waiter = self._queue.popleft()
        self._bounds.leave(waiter.size)
        return waiter
