"""Keeps each model on the number of hosts that it should have: replaces lost copies and moves copies off hosts."""

from __future__ import annotations

from plimsoll_operator.placement.host_selection import HostSelection, closed, unfit
from plimsoll_operator.placement.journal import Journal
from plimsoll_operator.placement.ledger import Known, Ledger, Slot
from plimsoll_operator.placement.phases.removal import reduce
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.action import ActionCause
from plimsoll_operator.placement.records.level import Condition, Level, State
from plimsoll_operator.placement.records.plan import Refused

TOLD = 4
"""The number of hosts that a message names."""
NOWHERE = (Refused.NO_HOSTS, Refused.NO_DEVICE, Refused.TOO_LARGE, Refused.GROUPS)


def cover(builder: PlanBuilder, selection: HostSelection, journal: Journal) -> None:
    """Place, move and unload copies until each model has its number of hosts.

    A new copy is OnDisk, or InHost if it replaces one that had an image or was in use. Only a Resident copy that gets
    a new revision on its own host is awake again at once.
    """
    unsettled = [known for known in builder.index.models.values() if not known.model.stopped and not _covered(known)]
    for known in sorted(unsettled, key=Known.order):
        refusal = builder.lasting.get(known.model.key)
        if refusal is None or refusal.reason not in NOWHERE:
            _replace(builder, selection, known, journal)
        _leave(builder, known)
        reduce(builder, known)


def _replace(builder: PlanBuilder, selection: HostSelection, known: Known, journal: Journal) -> None:
    while (lies := _good(known)) < known.model.placed:
        leaving = [slot for slot in known.slots if _may_leave(builder, slot)]
        source = min(leaving, key=lambda slot: (not slot.state.awake, slot.ledger.key), default=None)
        if source is not None and source.ledger.keeps and unfit(known, source.ledger) is None:
            level = Level.RESIDENT if _refills(source, known) else _rest(source, source.ledger, source.image)
            if level is Level.RESIDENT:
                builder.refusals.pop(known.model.key, None)
            return builder.move(source, source.ledger, level, ActionCause.REVISION, "its spec has another revision")
        options = selection.files(known)
        journal.listed(known, options)
        if not options:
            if lies == 0:
                _refuse(builder, known)
            return None
        target = options[0].ledger
        if source is None:
            why = f"{lies} of {known.model.placed} hosts have it" if lies else "no host has it yet"
            builder.place(known, target, Level.ON_DISK, ActionCause.MISSING, why)
        else:
            why = f"{source.ledger.key} is {_condition(source)}, or does not match its spec"
            builder.move(source, target, _rest(source, target, 0), ActionCause.DRAINING, why)
    return None


def _refuse(builder: PlanBuilder, known: Known) -> None:
    """Refuse a model that no host takes, with WaitsForHost if hosts that are not ready could take it later."""
    ledgers = list(builder.index.ledgers.values())
    later = [ledger for ledger in ledgers if ledger.host.condition is not Condition.READY and not unfit(known, ledger)]
    told = ", ".join(f"{ledger.key.name} ({_obstacle(known, ledger)})" for ledger in (later or ledgers)[:TOLD])
    more = f" and {len(later or ledgers) - TOLD} more" if (later or ledgers)[TOLD:] else ""
    if later:
        builder.refuse(known, Refused.WAITS_FOR_HOST, f"it waits for hosts: {told}{more}", {"hosts": len(later)})
    else:
        message = f"none of the {len(ledgers)} hosts can take it: {told}{more}"
        builder.refuse(known, Refused.NO_ROOM, message, {"hosts": len(ledgers)})


def _obstacle(known: Known, ledger: Ledger) -> str:
    """Return why a host takes no new copy of a model."""
    if (note := unfit(known, ledger)) is not None:
        return note[1]
    return "has a copy that has to leave" if known.model.key in ledger.slots else closed(ledger)


def _leave(builder: PlanBuilder, known: Known) -> None:
    """Unload copies that have to leave, once enough other copies exist."""
    if _good(known) < known.model.placed:
        return
    for slot in [slot for slot in known.slots if _may_leave(builder, slot)]:
        revision = slot.ledger.keeps
        why = "has an older spec" if revision else f"is on a host that is {_condition(slot)}"
        builder.unload(slot, ActionCause.REVISION if revision else ActionCause.DRAINING, f"it {why}, and is replaced")


def _covered(known: Known) -> bool:
    """Return whether a model has exactly `Model.placed` copies, and all of them stay."""
    slots = known.slots
    if len(slots) != known.model.placed:
        return False
    return all(slot.stays for slot in slots)


def _condition(slot: Slot) -> str:
    return slot.ledger.host.condition.value.lower()


def _may_leave(builder: PlanBuilder, slot: Slot) -> bool:
    return not slot.stays and slot.idle and not builder.stuck(slot)


def _good(known: Known) -> int:
    """Return the number of copies that stay. A copy that drains to sleep stays; one that drains to be unloaded does
    not.
    """
    return sum(slot.stays for slot in known.slots)


def _refills(source: Slot, known: Known) -> bool:
    """Return whether a copy that is awake can wake again on its own host once it is unloaded."""
    return source.state is State.RESIDENT and source.ledger.free + source.device >= known.device


def _rest(source: Slot, target: Ledger, freed: int) -> Level:
    """Return the level of the copy on `target` that replaces `source`: InHost if `source` has an image or was in use
    and the target has host memory for an image, else OnDisk. `freed`: bytes of host memory that the move frees there.
    """
    known = source.known
    assert known is not None
    used = source.state is State.IN_HOST or (source.state is State.RESIDENT and source.rate > 0)
    return Level.IN_HOST if used and target.free_images + freed >= known.image else Level.ON_DISK
