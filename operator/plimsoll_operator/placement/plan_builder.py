"""Builds a plan. Each action changes the ledgers immediately, so that the next one is planned on its result."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.eviction import EvictionSets
from plimsoll_operator.placement.image_memory import ImageMemory
from plimsoll_operator.placement.ledger import LEVELS, Known, Ledger, Slot
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.action import Action, ActionCause, First, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.host import Copy
from plimsoll_operator.placement.records.level import Level, State
from plimsoll_operator.placement.records.plan import Placement, Plan, Refusal, Refused


class PlanBuilder:
    """The actions so far, in order, with their effect on the index's ledgers."""

    def __init__(self, index: PoolIndex) -> None:
        self.index = index
        self.evictions, self.images = EvictionSets(index), ImageMemory(index)
        self.actions: list[Action] = []
        self.lasting: dict[ObjectKey, Refusal] = {}
        self.refusals: dict[ObjectKey, Refusal] = {}
        self.entered: set[tuple[ObjectKey, ObjectKey]] = set()
        self.moves = 0
        self.truncated = False
        self._whys: dict[tuple[ObjectKey, ObjectKey], str] = {}
        self._waits: list[float] = []

    def begin(self) -> None:
        """Start another round: the last round's actions count as done, and its refusals are tried again."""
        self.refusals = dict(self.lasting)
        self._waits, self.truncated = [], False
        for ledger in self.index.ledgers.values():
            for slot in ledger.slots.values():
                slot.touched = False
            self.evictions.forget(ledger)

    def stuck(self, slot: Slot) -> bool:
        """Return whether this plan has just placed the copy, or has an action for it in this round."""
        return slot.touched or (slot.copy.model, slot.ledger.key) in self.entered

    def later(self, seconds: float) -> None:
        """Have the next plan made after at most this many seconds; ignored if not positive."""
        if seconds > 0:
            self._waits.append(seconds)

    def lately(self, known: Known) -> float:
        """Return the seconds until the model may move again; 0 if it may now."""
        moved, interval = known.model.moved, self.index.rules.move_interval
        return 0.0 if moved is None else max(0.0, moved + interval - self.index.now)

    def refuse(self, known: Known, reason: Refused, message: str, numbers: Mapping[str, float]) -> None:
        """Record why a model is not placed or awake as wanted. The first reason of a model is kept."""
        self.refusals.setdefault(known.model.key, Refusal(known.model.key, reason, message, numbers))

    def sleep(self, slot: Slot, because: ActionCause, why: str) -> None:
        """Put a copy one or two sleep levels lower.

        A Resident one becomes InHost if its image fits, if necessary after dropping images of no more value; else
        OnDisk. An InHost one becomes OnDisk: its image is dropped.
        """
        level = Level.IN_HOST if slot.state is State.RESIDENT and self._bed(slot) else Level.ON_DISK
        image = slot.known.image if slot.known is not None and level is Level.IN_HOST else 0
        slot.ledger.set(slot, level, 0, image)
        slot.copy = replace(slot.copy, since=self.index.now)
        self._note(slot, why)
        self.actions.append(Sleep(slot.copy.model, slot.ledger.key, because, why, level))

    def wake(self, slot: Slot, because: ActionCause, why: str) -> None:
        """Wake a sleeping copy. Its host must have the memory."""
        slot.ledger.set(slot, Level.RESIDENT, _known(slot).device, 0)
        slot.copy = replace(slot.copy, since=self.index.now)
        self._note(slot, why)
        self.actions.append(Wake(slot.copy.model, slot.ledger.key, because, why))

    def place(self, known: Known, ledger: Ledger, level: Level, because: ActionCause, why: str) -> None:
        """Put a model on a host that does not have it. The host must have the memory for the level."""
        self._enter(known, ledger, level, why)
        self.actions.append(Place(known.model.key, ledger.key, because, why, level))

    def unload(self, slot: Slot, because: ActionCause, why: str) -> None:
        """Remove a copy from its host."""
        self._leave(slot)
        self.actions.append(Unload(slot.copy.model, slot.ledger.key, because, why))

    def move(self, slot: Slot, ledger: Ledger, level: Level, because: ActionCause, why: str) -> None:
        """Move a model to another host or, for a new revision, unload it and place it again on the same host.

        The target must have the memory; on the same host, unloading frees it.
        """
        known, first = _known(slot), First.UNLOAD if slot.ledger is ledger else First.PLACE
        self.moves += slot.state.awake
        if first is First.UNLOAD:
            self._leave(slot)
        self._enter(known, ledger, level, why)
        if first is First.PLACE:
            self._leave(slot)
        self.actions.append(Move(known.model.key, ledger.key, because, why, slot.ledger.key, level, first))

    def plan(self) -> Plan:
        """Return the plan."""
        placements = [
            Placement(slot.copy.model, ledger.key, slot.level, self._why(slot))
            for ledger in self.index.ledgers.values()
            for slot in ledger.slots.values()
            if slot.known is not None and slot.state is not State.DRAINING
        ]
        placements.sort(key=lambda placement: (placement.model, placement.host))
        refusals = tuple(self.refusals[key] for key in sorted(self.refusals))
        wait = min(self._waits, default=None)
        return Plan(tuple(self.actions), tuple(placements), refusals, wait, self.truncated)

    def _bed(self, slot: Slot) -> bool:
        """Make sure that the copy's image fits into host memory, if necessary by dropping images of no more value.
        Return False if that is impossible.
        """
        images = self.images.find(slot, slot.ledger.free_images)
        for other in images or ():
            why = f"its image is dropped for that of {slot.copy.model}, which is worth more"
            self.sleep(other, ActionCause.EVICTED, why)
        return images is not None

    def _enter(self, known: Known, ledger: Ledger, level: Level, why: str) -> None:
        device = known.device if level is Level.RESIDENT else 0
        image = known.image if level is Level.IN_HOST else 0
        copy = Copy(known.model.key, known.model.revision, LEVELS[level], since=self.index.now)
        slot = Slot(ledger, copy, known, LEVELS[level], device, image, 0.0, current=True)
        ledger.add(slot)
        self.entered.add((known.model.key, ledger.key))
        known.slots.append(slot)
        self._note(slot, why)

    def _leave(self, slot: Slot) -> None:
        slot.touched = True
        slot.ledger.remove(slot)
        if slot.known is not None:
            slot.known.slots.remove(slot)
        self.evictions.forget(slot.ledger)

    def _note(self, slot: Slot, why: str) -> None:
        slot.touched = True
        self._whys[slot.copy.model, slot.ledger.key] = why
        self.evictions.forget(slot.ledger)

    def _why(self, slot: Slot) -> str:
        told = self._whys.get((slot.copy.model, slot.ledger.key))
        return told or (f"it is {slot.state} there" if slot.stays else "it will leave this host")


def _known(slot: Slot) -> Known:
    assert slot.known is not None, f"the pool does not have {slot.copy.model}"
    return slot.known
