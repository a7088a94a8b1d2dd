"""Who has how much of a shelf, and what must go when it is full.

What was used least recently goes first, but nobody loses anything while he has no more than an even share of the whole:
however much others keep, his responses are there until they are too old. A share that nobody needs is for whoever does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plimsoll_runtime.api.responses.store import Bounds


@dataclass(slots=True)
class Part:
    """What one owner has."""

    count: int = 0
    bytes: int = 0


class Shares:
    """The parts of all owners that have anything."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._parts: dict[str, Part] = {}
        self._beyond: set[str] = set()  # those that have more than one owner may
        self.count = self.bytes = 0

    def add(self, owner: str, size: int, count: int = 1) -> None:
        """He has one response more, or `count` of them, of so many bytes."""
        part = self._parts.setdefault(owner, Part())
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
        parts: dict[str, Part] = {}
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
            parts[owner] = part = Part(part.count - 1, part.bytes - its_size)
            owners -= not part.count
            if not self._is_beyond(part):
                beyond.discard(owner)
        return lost

    def _is_beyond(self, part: Part) -> bool:
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
