"""A shelf in the server's memory: with the process, what it holds is gone."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.api.responses.store import Bounds, Clock, Kept


@dataclass(slots=True)
class _Place:
    kept: Kept
    used: float


class MemoryShelf:
    """In the order of use."""

    def __init__(self, bounds: Bounds, clock: Clock = time.time) -> None:
        self._bounds = bounds
        self._clock = clock
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._bytes = 0

    def put(self, kept: Kept) -> bool:
        """Keep it, in place of what has its id. False where it alone is beyond the bound."""
        self._drop(kept.id)
        if kept.size > self._bounds.bytes:
            return False
        self._places[kept.id] = _Place(kept, self._clock())
        self._bytes += kept.size
        self._make_room()
        return True

    def get(self, response: str, owner: str) -> Kept | None:
        """The one of that id, if it is the owner's."""
        self._make_room()
        place = self._places.get(response)
        return place.kept if place is not None and place.kept.owner == owner else None

    def use(self, responses: Sequence[str]) -> None:
        """They were used now, the last of them last."""
        self._make_room()
        now = self._clock()
        for response in responses:
            if (place := self._places.get(response)) is not None:
                place.used = now
                self._places.move_to_end(response)

    def delete(self, response: str, owner: str) -> bool:
        """Forget it, if it is the owner's; whether it was there."""
        if self.get(response, owner) is None:
            return False
        self._drop(response)
        return True

    def close(self) -> None:
        """Forget everything."""
        self._places.clear()
        self._bytes = 0

    def _make_room(self) -> None:
        oldest_allowed = self._clock() - self._bounds.seconds
        while self._places:
            first, place = next(iter(self._places.items()))
            full = len(self._places) > self._bounds.count or self._bytes > self._bounds.bytes
            if not full and place.used >= oldest_allowed:
                return
            self._drop(first)

    def _drop(self, response: str) -> None:
        place = self._places.pop(response, None)
        if place is not None:
            self._bytes -= place.kept.size

    def check_integrity(self) -> None:
        """Raises AssertionError where its records contradict each other, or a bound is not kept."""
        sizes = [place.kept.size for place in self._places.values()]
        assert self._bytes == sum(sizes), f"{self._bytes} bytes are counted, {sum(sizes)} are there"
        assert len(sizes) <= self._bounds.count, f"{len(sizes)} responses"
        assert self._bytes <= self._bounds.bytes, f"{self._bytes} bytes"
        assert all(place.kept.id == response for response, place in self._places.items()), "one lies at another's place"
