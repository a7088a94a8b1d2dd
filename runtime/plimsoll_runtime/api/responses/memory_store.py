"""The interface of response stores, the shares of their owners, and the store in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from plimsoll_runtime.options import ResponseBounds

OVERHEAD = 512
"""Bytes that a response takes beside its texts."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response. `response` is its JSON as it is told, `input` the JSON of its own input's items, `previous` the id
    of the one that it goes on from. `events` are what its stream told, packed, where it can be followed again.
    `running`: it had not ended when it was kept.
    """

    id: str
    owner: str
    previous: str | None
    response: bytes
    input: bytes
    events: bytes = b""
    running: bool = False

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return OVERHEAD + len(self.response) + len(self.input) + len(self.events)


class StoreBackend(Protocol):
    """Used by one thread at a time."""

    def put(self, kept: StoredResponse) -> bool:
        """Keep it, in place of what has its id. False where there is no room for it beside what others have a right to;
        then it is not there, and nothing else went for it.
        """

    def get(self, response: str, owner: str) -> StoredResponse | None:
        """The one of that id, if it is the owner's."""

    def use(self, responses: Sequence[str]) -> None:
        """They were used now, the last of them last. Those that are not there do not count."""

    def delete(self, response: str, owner: str) -> bool:
        """Forget it, if it is the owner's; whether it was there."""

    def close(self) -> None:
        """Nothing is asked of it any more."""

    def check_integrity(self) -> None:
        """Raises AssertionError where its records contradict each other, or a bound is not kept."""


Clock = Callable[[], float]
"""Seconds since the epoch."""


@dataclass(slots=True)
class StoreShare:
    """What one owner has."""

    count: int = 0
    bytes: int = 0


class Shares:
    """The parts of all owners that have anything.

    When the store is full, the least recently used response goes first, of owners that have more than an even share. An
    owner with no more than an even share loses nothing before its time, however much others keep. A share that is not
    needed is free for others. A response is used when it is stored, and when a conversation continues from it.
    """

    def __init__(self, bounds: ResponseBounds) -> None:
        self._bounds = bounds
        self._parts: dict[str, StoreShare] = {}
        self._beyond: set[str] = set()  # those that have more than one owner may
        self.count = self.bytes = 0

    def add(self, owner: str, size: int, count: int = 1) -> None:
        """He has one response more, or `count` of them, of so many bytes."""
        part = self._parts.setdefault(owner, StoreShare())
        part.count, part.bytes = part.count + count, part.bytes + size
        self.count, self.bytes = self.count + count, self.bytes + size
        if self._is_beyond(part):
            self._beyond.add(owner)

    def drop(self, owner: str, size: int) -> None:
        """He has one less."""
        part = self._parts[owner]
        part.count, part.bytes = part.count - 1, part.bytes - size
        self.count, self.bytes = self.count - 1, self.bytes - size
        if not self._is_beyond(part):
            self._beyond.discard(owner)
        if not part.count:
            del self._parts[owner]

    @property
    def fit(self) -> bool:
        """Whether all bounds are kept."""
        return not self._beyond and self.count <= self._bounds.count and self.bytes <= self._bounds.bytes

    def losers(self, oldest_first: Iterable[tuple[str, str, int]]) -> list[str]:
        """Of all responses (id, owner, bytes), in the order of their use, those that must go so that all bounds are
        kept.

        One that is passed over needs no second look: as others go, an even share does not become smaller.
        """
        bounds, count, size, owners = self._bounds, self.count, self.bytes, len(self._parts)
        beyond, lost = set(self._beyond), list[str]()
        parts: dict[str, StoreShare] = {}
        for response, owner, its_size in oldest_first:
            too_many, too_large = count > bounds.count, size > bounds.bytes
            if not (too_many or too_large or beyond):
                break
            part = parts.get(owner) or replace(self._parts[owner])
            if not (
                owner in beyond
                or (too_many and part.count * owners > bounds.count)
                or (too_large and part.bytes * owners > bounds.bytes)
            ):
                continue
            lost.append(response)
            count, size = count - 1, size - its_size
            parts[owner] = part = StoreShare(part.count - 1, part.bytes - its_size)
            owners -= not part.count
            if not self._is_beyond(part):
                beyond.discard(owner)
        return lost

    def _is_beyond(self, part: StoreShare) -> bool:
        return part.count > self._bounds.count_of_one or part.bytes > self._bounds.bytes_of_one

    def check_integrity(self, parts: dict[str, tuple[int, int]]) -> None:
        """Raises AssertionError where these are not the `parts` (responses, bytes) that are there, or a bound is not
        kept.
        """
        counted = {owner: (part.count, part.bytes) for owner, part in self._parts.items()}
        assert counted == parts, f"{counted} is counted, {parts} is there"
        assert self.count == sum(count for count, _ in parts.values()), f"{self.count} responses"
        assert self.bytes == sum(size for _, size in parts.values()), f"{self.bytes} bytes"
        assert self.fit, f"{self.count} responses, {self.bytes} bytes: {counted}"


@dataclass(slots=True)
class _Place:
    kept: StoredResponse
    used: float


class MemoryStore:
    """In the order of use.

    Its responses end with the process.
    """

    def __init__(self, bounds: ResponseBounds, clock: Clock = time.time) -> None:
        self._bounds = bounds
        self._clock = clock
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._shares = Shares(bounds)

    def put(self, kept: StoredResponse) -> bool:
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

    def get(self, response: str, owner: str) -> StoredResponse | None:
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
