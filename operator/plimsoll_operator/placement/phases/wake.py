"""Wakes models that should be awake: chooses their hosts and victims.

A host handles the requests that wait there itself: it wakes their model in turn, and knows best which of its models are
in use and have had their service slice. If a plan evicted models for those requests or moved their model elsewhere, it
would cause a second load, and the requests would still wait at the first host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_operator.placement.host_option import Grounds, HostOption
from plimsoll_operator.placement.host_selection import HostSelection
from plimsoll_operator.placement.journal import Journal
from plimsoll_operator.placement.ledger import Known, Slot
from plimsoll_operator.placement.phases.defragmentation import defragment
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.action import ActionCause
from plimsoll_operator.placement.records.level import Level, State
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.units import count, size, span


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """How many replicas of a model should be awake in total, which models may be evicted for them, and the reason."""

    replicas: int
    grounds: Grounds
    because: ActionCause
    why: str


def wake(builder: PlanBuilder, selection: HostSelection, journal: Journal) -> None:
    """Wake, place or move models that should be awake, in the order of Known.order."""
    asking = [
        known for known in builder.index.models.values() if _asks(known) and known.model.key not in builder.refusals
    ]
    for known in sorted(asking, key=Known.order):
        for request in wake_requests(known, builder.index.rules.patience):
            if not _grant(builder, selection, known, request, journal):
                break


def _asks(known: Known) -> bool:
    """Return whether `wake_requests` may yield any request for this model."""
    model, wanted = known.model, known.model.replicas
    if model.stopped:
        return False
    if model.pinned or known.waiting > known.held or wanted.least or known.lost > 0 or wanted.desired > 1:
        return True
    return any(not slot.stays for slot in known.slots)


def wake_requests(known: Known, patience: float) -> Iterator[WakeRequest]:
    """Yield a request for each reason that applies to have replicas of the model awake.

    A pin is the only reason of a pinned model. Otherwise the order is: requests that wait at gateways or at hosts that
    do not wake it themselves, `Replicas.least`, use on a host that it must leave or that is lost, and
    `Replicas.desired` above 1.
    """
    model, wanted = known.model, known.model.replicas
    if model.pinned:
        replicas = max(1, wanted.desired, wanted.least)
        yield WakeRequest(replicas, Grounds.PIN, ActionCause.KEPT_AWAKE, "it is pinned")
        return
    if known.waiting > known.held:
        grounds = Grounds.TURN if known.waited >= patience else Grounds.DEMAND
        why = f"{count(known.waiting, 'request')} waited {span(known.waited)} for it"
        yield WakeRequest(1, grounds, ActionCause.DEMAND, why)
    if wanted.least:
        yield WakeRequest(wanted.least, Grounds.LOWER, ActionCause.KEPT_AWAKE, f"at least {wanted.least} stay awake")
    leaving = any(slot.state.awake and not slot.stays and slot.rate > 0 for slot in known.slots)
    if wanted.desired and (known.lost > 0 or leaving):
        yield WakeRequest(1, Grounds.VALUE, ActionCause.DRAINING, "it was in use on a host that it must leave")
    if wanted.desired > 1 and known.rate > 0 and _awake(known):
        why = f"{60 * known.rate:.1f} requests a minute want {wanted.desired} replicas"
        yield WakeRequest(wanted.desired, Grounds.VALUE, ActionCause.DEMAND, why)


def _grant(
    builder: PlanBuilder, selection: HostSelection, known: Known, request: WakeRequest, journal: Journal
) -> bool:
    """Wake copies until as many as requested are awake. Return False if something prevents it."""
    while len(_awake(known)) < request.replicas:
        if any(slot.state is State.FETCHING for slot in known.slots if slot.stays):
            return False
        options = selection.options(known, request.grounds)
        journal.weighed(known, request.why, options)
        best = options[0] if options else None
        if best is None:
            return False
        if best.obstacle is not None:
            if request.grounds >= Grounds.DEMAND and defragment(builder, selection, known, options, request.why):
                continue
            _refuse(builder, known, request, options)
            return False
        if not _act(builder, known, best, request):
            return False
    return True


def _act(builder: PlanBuilder, known: Known, best: HostOption, request: WakeRequest) -> bool:
    """Evict the victims, then wake, move or place the model on the host `best`.

    Return False if the limit of moves defers it to the next plan, or if a new copy would be one too many and no old
    copy can be replaced now.
    """
    source = _source(builder, known) if best.own is None else None
    if source is None and best.own is None and len(_good(known)) >= known.model.placed:
        builder.truncated = True
        return False
    awake = source is not None and source.state.awake
    if awake and builder.moves >= builder.index.rules.moves:
        builder.truncated = True
        return False
    for victim in best.evictions:
        builder.sleep(victim, ActionCause.EVICTED, _why_evicted(builder, victim, known))
    if best.own is not None:
        how = "wake" if best.own.state is State.IN_HOST else "load"
        builder.wake(best.own, request.because, f"{request.why}; {span(best.seconds)} to {how}")
    elif source is not None:
        away = f"{request.why}; {source.ledger.key} has no memory for it, or the model must leave it"
        builder.move(source, best.ledger, Level.RESIDENT, request.because, away)
    else:
        why = f"{request.why}; {span(best.seconds)} to load"
        builder.place(known, best.ledger, Level.RESIDENT, request.because, why)
    return True


def _source(builder: PlanBuilder, known: Known) -> Slot | None:
    """Return the copy that a new copy on another host replaces: one that has to leave or, if the model has all its
    copies, a sleeping one; None if there is none.
    """
    leaving = [slot for slot in known.slots if not slot.stays and slot.idle and not builder.stuck(slot)]
    if leaving:
        return max(leaving, key=lambda slot: (slot.state.awake, slot.ledger.key))
    good = _good(known)
    if len(good) < known.model.placed:
        return None
    asleep = [slot for slot in good if slot.state in (State.IN_HOST, State.ON_DISK) and not builder.stuck(slot)]
    return min(asleep, key=lambda slot: (slot.state is State.IN_HOST, slot.ledger.key), default=None)


def _good(known: Known) -> list[Slot]:
    return [slot for slot in known.slots if slot.stays and slot.state is not State.DRAINING]


def _awake(known: Known) -> list[Slot]:
    return [slot for slot in known.slots if slot.stays and slot.state.awake]


def _why_evicted(builder: PlanBuilder, victim: Slot, known: Known) -> str:
    """Return the reason of an eviction, such as: retention value 0.8 (3.1 for the model that needs the memory), idle
    for 12 min, 4.0 s to wake it again.
    """
    value = builder.index.value(victim)
    ours = builder.index.worth(known)
    idle = span(max(0.0, builder.index.now - victim.copy.last_used)) if victim.copy.last_used else "ever"
    back = span(builder.index.seconds_back(victim))
    lower = victim.known is not None and victim.known.model.priority < known.model.priority
    reason = f"evicted for {known.model.key}, of higher priority" if lower else f"evicted for {known.model.key}"
    values = f"retention value {value:.2g} ({ours:.2g} for the model that needs the memory)"
    return f"{reason}: {values}, idle for {idle}, {back} to wake it again"


def _refuse(builder: PlanBuilder, known: Known, request: WakeRequest, options: list[HostOption]) -> None:
    """Refuse to wake the model: record the obstacle of the host where it is most likely to pass. Have the next plan
    made when an obstacle may have passed.
    """
    order = (
        Refused.WAITS_FOR_ROOM,
        Refused.WAITS_FOR_TURN,
        Refused.FAILED_LATELY,
        Refused.WAITS_FOR_HOST,
        Refused.NO_ROOM,
    )
    rank = {reason: place for place, reason in enumerate(order)}
    nearest = min(options, key=lambda option: (rank.get(option.obstacle or Refused.NO_ROOM, len(rank)), option.order))
    index = builder.index
    for slot in (slot for option in options for slot in option.ledger.slots.values() if slot.state is State.RESIDENT):
        builder.later(index.young(slot))
    for slot in known.slots:
        builder.later(slot.copy.retry - index.now)
    if request.grounds is Grounds.DEMAND:
        builder.later(index.rules.patience - known.waited)
    free = max((option.ledger.free for option in options), default=0)
    message = (
        f"{request.why}, and no host has {size(known.device)} for it; at most {size(max(0, free))} are free; "
        f"{nearest.ledger.key}: {nearest.note}"
    )
    numbers = {"need": known.device, "free": free, "waiting": known.waiting, "waited": known.waited}
    builder.refuse(known, nearest.obstacle or Refused.NO_ROOM, message, numbers)
