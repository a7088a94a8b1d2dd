"""Frees memory before other phases use it: unwanted models, surplus copies, and hosts above their lines."""

from __future__ import annotations

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.ledger import Known, Slot
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.action import ActionCause
from plimsoll_operator.placement.records.level import Level, Pressure, State
from plimsoll_operator.placement.units import count, size, span


def remove(builder: PlanBuilder) -> None:
    """Unload stopped models, models that the pool does not have, and surplus copies. Put models to sleep if they should
    not be awake, or are idle on a host above its line. Drop images on hosts above their image memory.
    """
    for ledger in builder.index.ledgers.values():
        for slot in list(ledger.slots.values()):
            if slot.state.settled and (slot.known is None or slot.known.model.stopped) and not slot.copy.active:
                gone = slot.known is None
                builder.unload(slot, ActionCause.REMOVED, "the pool does not have it" if gone else "it is stopped")
    for known in builder.index.models.values():
        reduce(builder, known)
        _rest(builder, known)
    for ledger in builder.index.ledgers.values():
        while ledger.free + ledger.leaving() < 0 and (idle := builder.evictions.idle(ledger)):
            full = " under full pressure" if ledger.host.pressure is Pressure.FULL else ""
            why = f"{ledger.key} holds {size(ledger.device_used)}, above its line of {size(ledger.line)}{full}"
            builder.sleep(idle[0], ActionCause.PRESSURE, why)
        images = [slot for slot in ledger.slots.values() if slot.state is State.IN_HOST and not slot.copy.waiting]
        images = [slot for slot in images if not slot.touched]
        for slot in sorted(images, key=lambda slot: (builder.index.value(slot), slot.copy.last_used, slot.copy.model)):
            if ledger.free_images >= 0:
                break
            builder.sleep(slot, ActionCause.PRESSURE, f"the images of {ledger.key} exceed its --sleepers memory")


def reduce(builder: PlanBuilder, known: Known) -> None:
    """Unload copies of a model beyond `Model.placed`. A Resident one stays until one of the kept copies is Resident."""
    if known.model.stopped or len(known.slots) <= known.model.placed:
        return
    good = [slot for slot in known.slots if slot.stays and slot.state is not State.DRAINING]
    if len(good) <= known.model.placed:
        return
    good.sort(key=lambda slot: _worth_most(slot, known.model.moved))
    kept, surplus = good[: known.model.placed], good[known.model.placed :]
    serves = any(slot.state is State.RESIDENT for slot in kept)
    for slot in surplus:
        if not slot.idle or slot.touched or (slot.state is State.RESIDENT and not serves):
            continue
        if slot.state is State.RESIDENT and (left := builder.index.young(slot)):
            builder.later(left)
            continue
        wanted = count(known.model.placed, "host")
        builder.unload(slot, ActionCause.SCALED, f"it should be on {wanted}, and is on {len(good)}")


def _rest(builder: PlanBuilder, known: Known) -> None:
    """Put the idle copies of a model to sleep if no replica is wanted awake and no request waits."""
    model = known.model
    if model.stopped or model.replicas.desired or model.replicas.least or model.pinned or known.waiting:
        return
    for slot in [slot for slot in known.slots if slot.state is State.RESIDENT and slot.idle and not slot.touched]:
        if left := builder.index.young(slot):
            builder.later(left)
        else:
            idle = span(max(0.0, builder.index.now - slot.copy.last_used))
            builder.sleep(slot, ActionCause.SCALED, f"no replica is wanted awake; idle for {idle}")


def _worth_most(slot: Slot, moved: float | None) -> tuple[bool, bool, bool, bool, float, ObjectKey]:
    """Sort key of copies, best to keep first.

    First those awake, then those whose state has changed since the model was last moved (`moved`), those in use, those
    with an image, and those whose state has changed last.
    """
    asleep, cold = slot.level is not Level.RESIDENT, slot.level is Level.ON_DISK
    left = moved is not None and slot.copy.since < moved
    return (asleep, left, slot.idle, cold, -slot.copy.since, slot.ledger.key)
