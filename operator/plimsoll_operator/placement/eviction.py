"""Which idle models give way to another on a host: the least worth first, and no more than it takes."""

from __future__ import annotations

from operator import attrgetter

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.host_option import Grounds
from plimsoll_operator.placement.ledger import Known, Ledger, Slot, fewest
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.retention_value import SCALE, chance
from plimsoll_operator.placement.units import size, span

MARGIN = 2.0
"""A replica that nobody waits for displaces what is worth less than this part of it: else two would take turns."""
Found = tuple[tuple[Slot, ...], Refused | None, str]


class EvictionSets:
    """Finds them. Each host's idle models are sorted once, and again when the plan has changed something there."""

    def __init__(self, index: PoolIndex) -> None:
        self._index = index
        self._sorted: dict[ObjectKey, list[Slot]] = {}

    def forget(self, ledger: Ledger) -> None:
        """Sort a host's models anew when they are asked for next."""
        self._sorted.pop(ledger.key, None)

    def idle(self, ledger: Ledger) -> list[Slot]:
        """Models that may give way at all: idle, unpinned, awake for the least time; the least worth first."""
        if ledger.key not in self._sorted:
            found = [slot for slot in ledger.awake() if slot.idle and not _pinned(slot) and not self._index.young(slot)]
            self._sorted[ledger.key] = sorted(found, key=self._order)
        return self._sorted[ledger.key]

    def find(self, ledger: Ledger, known: Known, grounds: Grounds, room: int) -> Found:
        """The victims that make up for `room` missing bytes, or why there are none."""
        if grounds is Grounds.FREE:
            return (), Refused.NO_ROOM, f"{size(room)} of free memory are missing"
        allowed = [slot for slot in self.idle(ledger) if slot.known is not known and _yields(slot, known, grounds)]
        chosen = fewest(allowed, room, attrgetter("device"))
        if chosen is None:
            if room <= ledger.leaving():
                return (), Refused.WAITS_FOR_ROOM, f"{size(ledger.leaving())} are being given back"
            return (), *self._why_none(ledger, room, allowed)
        complaint = self._complaint(chosen, known, grounds)
        return ((), Refused.WAITS_FOR_TURN, complaint) if complaint else (chosen, None, "")

    def _order(self, slot: Slot) -> tuple[int, float, float, int, ObjectKey]:
        priority = slot.known.model.priority if slot.known is not None else -(2**31)
        return (priority, self._index.value(slot), slot.copy.last_used, -slot.device, slot.copy.model)

    def _worth(self, slot: Slot) -> float:
        return self._index.value(slot) * slot.device / SCALE

    def _complaint(self, chosen: tuple[Slot, ...], known: Known, grounds: Grounds) -> str:
        """Why these are worth too much to go for it, "" if they are not. Lower priorities are not asked."""
        equals = [slot for slot in chosen if slot.known and slot.known.model.priority == known.model.priority]
        if grounds is Grounds.DEMAND:
            slice_ = self._index.rules.minimum_residency
            cost = sum(chance(slot.rate, slice_) * self._index.seconds_back(slot) for slot in equals)
            if cost > known.load:
                return (
                    f"what gives way is expected to cost {span(cost)} of loading within {span(slice_)}, "
                    f"more than the {span(known.load)} that loading it takes"
                )
        if grounds is Grounds.VALUE:
            awake = sum(slot.state.awake for slot in known.slots)
            own = known.rate / (awake + 1) * known.wake * known.model.weight
            lost = sum(self._worth(slot) for slot in equals)
            if lost * MARGIN > own:
                return f"what gives way is worth {3600 * lost:.2g} s of loading an hour, a replica {3600 * own:.2g}"
        return ""

    def _why_none(self, ledger: Ledger, room: int, allowed: list[Slot]) -> tuple[Refused, str]:
        found = sum(slot.device for slot in allowed)
        kept = [slot for slot in ledger.slots.values() if slot.state.on_device and slot not in allowed]
        young = [slot for slot in kept if slot.state is slot.copy.state and self._index.young(slot)]
        busy = sum(not slot.idle for slot in kept)
        pinned = sum(_pinned(slot) for slot in kept)
        return (
            Refused.WAITS_FOR_ROOM if busy or young else Refused.NO_ROOM,
            f"{size(room)} are missing and {size(found)} could give way; of the {len(kept)} models that stay, "
            f"{busy} are in use, {pinned} pinned, {len(young)} awake for less than "
            f"{span(self._index.rules.minimum_residency)}",
        )


def _pinned(slot: Slot) -> bool:
    return slot.known is not None and slot.known.model.pinned and slot.current


def _yields(slot: Slot, known: Known, grounds: Grounds) -> bool:
    if slot.known is None or grounds is Grounds.PIN:
        return True
    theirs, ours = slot.known.model.priority, known.model.priority
    return theirs < ours or (theirs == ours and grounds >= Grounds.VALUE)
