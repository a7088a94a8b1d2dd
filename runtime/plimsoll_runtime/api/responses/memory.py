"""A shelf in the server's memory: with the process, what it holds is gone."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.api.responses.shares import Shares
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
        self._shares = Shares(bounds)

    def put(self, kept: Kept) -> bool:
        """Keep it, in place of what has its id. False where there is no room for it."""
        self._drop(kept.id)
        self._forget_old()
        self._places[kept.id] = _Place(kept, self._clock())
        self._shares.add(kept.owner, kept.size)
        if self._shares.fit:
            return True
        lost = self._shares.losers((id_, place.kept.owner, place.kept.size) for id_, place in self._places.items())
        fits = kept.id not in lost
        for response in lost if fits else (kept.id,):
            self._drop(response)
        return fits

    def get(self, response: str, owner: str) -> Kept | None:
        """The one of that id, if it is the owner's."""
        self._forget_old()
        place = self._places.get(response)
        return place.kept if place is not None and place.kept.owner == owner else None

    def use(self, responses: Sequence[str]) -> None:
        """They were used now, the last of them last."""
        self._forget_old()
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
        self._shares = Shares(self._bounds)

    def _forget_old(self) -> None:
        oldest_allowed = self._clock() - self._bounds.seconds
        while self._places:
            first, place = next(iter(self._places.items()))
            if place.used >= oldest_allowed:
                return
            self._drop(first)

    def _drop(self, response: str) -> None:
        place = self._places.pop(response, None)
        if place is not None:
            self._shares.drop(place.kept.owner, place.kept.size)

    def check_integrity(self) -> None:
        """Raises AssertionError where its records contradict each other, or a bound is not kept."""
        parts: dict[str, tuple[int, int]] = {}
        for place in self._places.values():
            count, size = parts.get(place.kept.owner, (0, 0))
            parts[place.kept.owner] = count + 1, size + place.kept.size
        self._shares.check_integrity(parts)
        assert all(place.kept.id == response for response, place in self._places.items()), "one lies at another's place"
