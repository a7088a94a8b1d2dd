"""Stored responses, and the shares of their owners in a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plimsoll_runtime.options import ResponseBounds

OVERHEAD = 512
"""Bytes that a response takes besides its texts."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One stored response. `response` is its JSON, `input` the JSON of its own input items, `previous` the id of the
    response that it continues. `events` are its packed stream events, if clients can follow it again. `running` says
    that it had not ended when it was stored."""

    id: str
    owner: str
    previous: str | None
    response: bytes
    input: bytes
    events: bytes = b""
    running: bool = False

    @property
    def size(self) -> int:
        """Bytes that it counts toward the limits of the store."""
        return OVERHEAD + len(self.response) + len(self.input) + len(self.events)


@dataclass(slots=True)
class StoreShare:
    """Number of stored responses of one owner, and their bytes."""

    count: int = 0
    bytes: int = 0


class Shares:
    """The shares of all owners with responses. An even share is a limit of the store divided by the number of owners.

    When the store is full, responses of owners with more than an even share are deleted, the least recently used first.
    An owner with no more than an even share loses nothing early, however much others store. A share that is not needed
    is free for others. A response is used when it is stored, and when a conversation continues from it.
    """

    def __init__(self, bounds: ResponseBounds) -> None:
        self._bounds = bounds
        self._parts: dict[str, StoreShare] = {}
        self._beyond: set[str] = set()  # owners above the limit of one owner
        self.count = self.bytes = 0

    def add(self, owner: str, size: int, count: int = 1) -> None:
        """Count `count` more responses of an owner, with `size` bytes together."""
        part = self._parts.setdefault(owner, StoreShare())
        part.count, part.bytes = part.count + count, part.bytes + size
        self.count, self.bytes = self.count + count, self.bytes + size
        if self._is_beyond(part):
            self._beyond.add(owner)

    def drop(self, owner: str, size: int) -> None:
        """Subtract one response of an owner, of `size` bytes."""
        part = self._parts[owner]
        part.count, part.bytes = part.count - 1, part.bytes - size
        self.count, self.bytes = self.count - 1, self.bytes - size
        if not self._is_beyond(part):
            self._beyond.discard(owner)
        if not part.count:
            del self._parts[owner]

    @property
    def fit(self) -> bool:
        """Whether all limits hold."""
        return not self._beyond and self.count <= self._bounds.count and self.bytes <= self._bounds.bytes

    def losers(self, oldest_first: Iterable[tuple[str, str, int]]) -> list[str]:
        """Return the responses to delete until all limits hold. `oldest_first` has all responses (id, owner, bytes) in
        the order of their last use.

        A response that is passed over needs no second look: while others are deleted, an even share does not become
        smaller.
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
        """Raise AssertionError if the counts differ from the actual `parts` (responses, bytes), or a limit is
        exceeded."""
        counted = {owner: (part.count, part.bytes) for owner, part in self._parts.items()}
        assert counted == parts, f"{counted} was counted, {parts} is stored"
        assert self.count == sum(count for count, _ in parts.values()), f"{self.count} responses"
        assert self.bytes == sum(size for _, size in parts.values()), f"{self.bytes} bytes"
        assert self.fit, f"{self.count} responses, {self.bytes} bytes: {counted}"
