"""The rows of the runner's batch state: which are taken, and which were given back since the last step."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class SlotPool:
    """Slots 0 .. count - 1; the smallest free one is taken first, so that a small batch stays compact."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count))
        self._freed: list[int] = []
        heapify(self._free)

    @property
    def available(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """The smallest free slot. Raises IndexError when there is none."""
        return heappop(self._free)

    def release(self, slot: int) -> None:
        """Give a slot back; the runner hears of it with the next step."""
        heappush(self._free, slot)
        self._freed.append(slot)

    def collect_freed(self) -> list[int]:
        """The slots given back since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def check_integrity(self, taken: list[int]) -> None:
        """Raises AssertionError unless every slot is either free or in `taken`, once."""
        assert sorted(self._free + taken) == list(range(self._count)), "a slot is lost or taken twice"
