"""Moves OnDisk models from hosts that hold far more than others. Only files move; nothing is loaded.

A request wakes its model on the host that has it, so models that share a crowded host evict each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll_operator.placement.host_selection import TopologyDomains, unfit
from plimsoll_operator.placement.ledger import Ledger, Slot
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.action import ActionCause
from plimsoll_operator.placement.records.level import Level, Pressure, State
from plimsoll_operator.placement.units import size

UNEVEN = 0.5
"""Models move only if two hosts' loads differ by at least this share of a line."""


def balance(builder: PlanBuilder) -> None:
    """Move OnDisk models from each host, fullest first, to the emptiest, while their loads differ by at least UNEVEN
    and the source does not become the emptier one.
    """
    takers = [each for each in builder.index.ledgers.values() if each.takes and each.host.pressure is Pressure.NONE]
    for source in sorted(builder.index.ledgers.values(), key=lambda ledger: (-_depth(ledger), ledger.key)):
        while takers and (found := _next(builder, source, min(takers, key=lambda each: (_depth(each), each.key)))):
            slot, target = found
            why = (
                f"the models on {source.key} would take {size(source.placed)} awake, those on {target.key} "
                f"{size(target.placed)}; it sleeps, and its files are all that moves"
            )
            builder.move(slot, target, Level.ON_DISK, ActionCause.BALANCED, why)


def _depth(ledger: Ledger) -> float:
    """Return the host's load: the device memory of its models if all were awake, as a multiple of its line."""
    return ledger.placed / max(1, ledger.line)


def _next(builder: PlanBuilder, source: Ledger, target: Ledger) -> tuple[Slot, Ledger] | None:
    """Return the largest copy that may move from `source`, and `target`; None if none may or the loads are even."""
    if source is target or not target.takes or _depth(source) - _depth(target) < UNEVEN:
        return None
    best = max(_movable(builder, source, target), key=lambda slot: (_bulk(slot), slot.copy.model), default=None)
    return (best, target) if best is not None else None


def _movable(builder: PlanBuilder, source: Ledger, target: Ledger) -> Iterator[Slot]:
    for slot in source.slots.values():
        known = slot.known
        if known is None or slot.state is not State.ON_DISK or not slot.idle or not slot.stays or builder.stuck(slot):
            continue
        if known.waiting or known.model.pinned or known.model.key in target.slots or unfit(known, target):
            continue
        if (source.placed - known.bulk) / max(1, source.line) < (target.placed + known.bulk) / max(1, target.line):
            continue
        groups = TopologyDomains(known)
        if groups.disregarded(target) > groups.disregarded(source):
            continue
        if left := builder.lately(known):
            builder.later(left)
            continue
        yield slot


def _bulk(slot: Slot) -> int:
    return slot.known.bulk if slot.known is not None else 0
