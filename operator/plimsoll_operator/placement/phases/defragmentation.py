"""Defragmentation: moves an idle model to another host, so that a model that needs more memory fits on its host."""

from __future__ import annotations

from plimsoll_operator.placement.host_option import HostOption
from plimsoll_operator.placement.host_selection import HostSelection, unfit
from plimsoll_operator.placement.ledger import Known, Ledger, Slot
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.action import ActionCause
from plimsoll_operator.placement.records.level import Level, Pressure
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.units import size

LASTING = (Refused.NO_DEVICE, Refused.TOO_LARGE, Refused.FAILED_LATELY)


def defragment(
    builder: PlanBuilder, selection: HostSelection, known: Known, options: list[HostOption], why: str
) -> bool:
    """Move one idle model to another host, where it is awake again, so that `known` fits on its present host.

    Of all models that free enough memory, move the smallest. Return False if there is none, none may move yet, or the
    plan has no moves left. Models that are in use, pinned or below the minimum residency do not move, and no model is
    put to sleep.
    """
    index = builder.index
    best: tuple[int, int, Slot, Ledger] | None = None
    for place, option in enumerate(options):
        source = option.ledger
        if option.obstacle in LASTING or (option.own is not None and not option.own.idle):
            continue
        if not (source.takes or option.own is not None) or source.leaving() >= known.device - source.free:
            continue
        for slot in builder.evictions.idle(source):
            if (
                slot.known is None
                or slot.known is known
                or builder.stuck(slot)
                or slot.device < known.device - source.free
            ):
                continue
            target = _target(builder, slot)
            if target is None:
                continue
            if left := builder.lately(slot.known):
                builder.later(left)
            elif best is None or (slot.device, place) < best[:2]:
                best = (slot.device, place, slot, target)
    if best is None:
        return False
    if builder.moves >= index.rules.moves:
        builder.truncated = True
        return False
    _, _, slot, target = best
    room = f"its {size(slot.device)} on {slot.ledger.key} make room for {known.model.key} ({why})"
    builder.move(slot, target, Level.RESIDENT, ActionCause.DEFRAGMENTED, f"it is idle and fits here, and {room}")
    return True


def _target(builder: PlanBuilder, slot: Slot) -> Ledger | None:
    """Return the other host with the least free device memory on which the model fits awake; None if there is none."""
    known = slot.known
    assert known is not None
    fitting = [
        ledger
        for ledger in builder.index.ledgers.values()
        if ledger is not slot.ledger
        and ledger.takes
        and ledger.host.pressure is Pressure.NONE
        and ledger.free >= known.device
        and known.model.key not in ledger.slots
        and unfit(known, ledger) is None
    ]
    return min(fitting, key=lambda ledger: (ledger.free, ledger.key), default=None)
