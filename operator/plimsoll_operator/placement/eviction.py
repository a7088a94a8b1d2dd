"""Chooses victims on a host: the fewest idle models, lowest priority and retention value first, that free enough
device memory.
"""

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
"""Without waiting requests, a new replica evicts models only if it is worth at least this many times as much as they
are. Otherwise two models would evict each other in turns.
"""
Found = tuple[tuple[Slot, ...], Refused | None, str]


class EvictionSets:
    """Finds victims. Sorts the idle models of each host once, and again after the plan has changed that host."""

    def __init__(self, index: PoolIndex) -> None:
        self._index = index
        self._sorted: dict[ObjectKey, list[Slot]] = {}

    def forget(self, ledger: Ledger) -> None:
        """Discard the sorted models of a host, so that the next call sorts them again."""
        self._sorted.pop(ledger.key, None)

    def idle(self, ledger: Ledger) -> list[Slot]:
        """Return the copies that may be evicted: Resident, idle, not pinned, past the minimum residency, and without an
        action in this round. The lowest priority comes first, then the lowest retention value.
        """
        if ledger.key not in self._sorted:
            found = [slot for slot in ledger.awake() if slot.idle and not _pinned(slot) and not self._index.young(slot)]
            self._sorted[ledger.key] = sorted(found, key=self._order)
        return self._sorted[ledger.key]

    def find(self, ledger: Ledger, known: Known, grounds: Grounds, room: int) -> Found:
        """Return (victims, None, "") if victims on this host free at least `room` bytes of device memory for the model,
        else ((), reason, message).
        """
        if grounds is Grounds.FREE:
            return (), Refused.NO_ROOM, f"it lacks {size(room)} of free memory"
        allowed = [slot for slot in self.idle(ledger) if slot.known is not known and _yields(slot, known, grounds)]
        chosen = fewest(allowed, room, attrgetter("device"))
        if chosen is None:
            if room <= ledger.leaving():
                return (), Refused.WAITS_FOR_ROOM, f"{size(ledger.leaving())} are about to be freed"
            return (), *self._why_none(ledger, room, allowed)
        complaint = self._complaint(chosen, known, grounds)
        return ((), Refused.WAITS_FOR_TURN, complaint) if complaint else (chosen, None, "")

    def _order(self, slot: Slot) -> tuple[int, float, float, int, ObjectKey]:
        priority = slot.known.model.priority if slot.known is not None else -(2**31)
        return (priority, self._index.value(slot), slot.copy.last_used, -slot.device, slot.copy.model)

    def _worth(self, slot: Slot) -> float:
        return self._index.value(slot) * slot.device / SCALE

    def _complaint(self, chosen: tuple[Slot, ...], known: Known, grounds: Grounds) -> str:
        """Return why evicting these victims would cost too much for grounds DEMAND or VALUE, as text; else "".

        Victims of lower priority than the model `known` cost nothing.
        """
        equals = [slot for slot in chosen if slot.known and slot.known.model.priority == known.model.priority]
        if grounds is Grounds.DEMAND:
            slice_ = self._index.rules.minimum_residency
            cost = sum(chance(slot.rate, slice_) * self._index.seconds_back(slot) for slot in equals)
            if cost > known.load:
                return (
                    f"the victims are expected to cost {span(cost)} of loading within {span(slice_)}, "
                    f"more than the {span(known.load)} to load this model"
                )
        if grounds is Grounds.VALUE:
            awake = sum(slot.state.awake for slot in known.slots)
            own = known.rate / (awake + 1) * known.wake * known.model.weight
            lost = sum(self._worth(slot) for slot in equals)
            if lost * MARGIN > own:
                return (
                    f"evicting the victims of its priority would cost {3600 * lost:.2g} s of loading an hour; the "
                    f"replica would save only {3600 * own:.2g}, and must save at least {MARGIN:g} times as much"
                )
        return ""

    def _why_none(self, ledger: Ledger, room: int, allowed: list[Slot]) -> tuple[Refused, str]:
        found = sum(slot.device for slot in allowed)
        kept = [slot for slot in ledger.slots.values() if slot.state.on_device and slot not in allowed]
        young = [slot for slot in kept if slot.state is slot.copy.state and self._index.young(slot)]
        busy = sum(not slot.idle for slot in kept)
        pinned = sum(_pinned(slot) for slot in kept)
        return (
            Refused.WAITS_FOR_ROOM if busy or young else Refused.NO_ROOM,
            f"it lacks {size(room)}, and {size(found)} can be evicted; of the {len(kept)} other models, "
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
