"""Chooses the sleep level of an evicted model, and the images of other models that are dropped for its image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from plimsoll_operator.placement.ledger import Slot, fewest
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.retention_value import HALF_LIFE, chance

LOWEST = -(2**31)


class ImageMemory:
    """Host memory for images. Images are dropped for another one if together they save no more seconds of loading, and
    no model of theirs has a higher priority.
    """

    def __init__(self, index: PoolIndex) -> None:
        self._index = index

    def find(self, slot: Slot, free: int, besides: Iterable[Slot] = ()) -> tuple[Slot, ...] | None:
        """Return the copies whose images are dropped so that the image of `slot` fits; () if it fits into `free` bytes.

        Return None if the model has to sleep on disk instead, because the images to drop would be worth more or do not
        suffice. Images of copies in `besides` are already dropped, and their bytes are part of `free`.
        """
        known, ledger = slot.known, slot.ledger
        if known is None or known.image > ledger.host.sleepers.capacity:
            return None
        if known.image <= free:
            return ()
        gone = set(besides)
        images = [other for other in ledger.slots.values() if other.state is State.IN_HOST and other not in gone]
        images = [other for other in images if not other.touched and not _wanted(other)]
        images = [other for other in images if _priority(other) <= known.model.priority]
        images.sort(key=lambda other: (self._index.value(other), other.copy.last_used, other.copy.model))
        chosen = fewest(images, known.image - free, attrgetter("image"))
        if chosen is None or sum(map(self._saved, chosen)) > self._saved(slot):
            return None
        return chosen

    def lost(self, evictions: Sequence[Slot]) -> float:
        """Return the weighted seconds of loading that evicting these models is expected to cost within a half-life."""
        if not evictions:
            return 0.0
        seconds, free, gone = 0.0, evictions[0].ledger.free_images, set[Slot]()
        for slot in evictions:
            if slot.known is None:
                continue
            images = self.find(slot, free, gone)
            if images is None:
                seconds += _expected(slot, slot.known.load)
                continue
            seconds += _expected(slot, slot.known.wake) + sum(
                _expected(image, image.known.load - image.known.wake) for image in images if image.known is not None
            )
            free += sum(image.image for image in images) - slot.known.image
            gone.update(images)
        return seconds

    def _saved(self, slot: Slot) -> float:
        """Return the seconds of loading that the image is expected to save per second, times the model's weight."""
        known = slot.known
        return 0.0 if known is None else slot.rate * (known.load - known.wake) * known.model.weight


def _expected(slot: Slot, seconds: float) -> float:
    weight = slot.known.model.weight if slot.known is not None else 0.0
    return chance(slot.rate, HALF_LIFE) * seconds * weight


def _wanted(slot: Slot) -> bool:
    return slot.copy.waiting > 0 or (slot.known is not None and slot.known.waiting > 0)


def _priority(slot: Slot) -> int:
    return slot.known.model.priority if slot.known is not None else LOWEST
