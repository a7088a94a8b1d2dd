"""Ranks the hosts on which a model could be awake."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.eviction import EvictionSets
from plimsoll_operator.placement.host_option import Grounds, HostOption
from plimsoll_operator.placement.image_memory import ImageMemory
from plimsoll_operator.placement.ledger import MODELS_PER_HOST, Known, Ledger, Slot
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.level import Condition, Pressure, Spread, State
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.units import size, span


class HostSelection:
    """Ranks hosts for a model."""

    def __init__(self, index: PoolIndex, evictions: EvictionSets) -> None:
        self._index, self._evictions, self._images = index, evictions, ImageMemory(index)

    def options(self, known: Known, grounds: Grounds) -> list[HostOption]:
        """Return all hosts on which the model could be awake, best first. Hosts with an obstacle come last."""
        domains = TopologyDomains(known)
        found = [self._option(ledger, known, grounds, domains) for ledger in self._index.ledgers.values()]
        return sorted(found, key=lambda option: (option.obstacle is not None, *option.order))

    def files(self, known: Known) -> list[HostOption]:
        """Return the hosts that can take the model's files, best first. Files take no memory until the model wakes.

        Hosts that violate fewer spread and affinity preferences come first, then those with a lower `PoolIndex.share`.
        """
        domains = TopologyDomains(known)
        found = []
        for ledger in self._index.ledgers.values():
            if not ledger.takes or known.model.key in ledger.slots or unfit(known, ledger):
                continue
            taken = self._index.share(ledger, known)
            found.append(HostOption(ledger, None, 0.0, disregarded=domains.disregarded(ledger), taken=taken))
        return sorted(found, key=lambda option: option.order)

    def _option(self, ledger: Ledger, known: Known, grounds: Grounds, domains: TopologyDomains) -> HostOption:
        own = ledger.slots.get(known.model.key)
        image = own is not None and own.state is State.IN_HOST and own.current
        seconds = known.wake if image else known.load
        if obstacle := self._obstacle(ledger, known, own):
            return HostOption(ledger, own, seconds, obstacle=obstacle[0], note=obstacle[1])
        room = known.device - ledger.free
        evictions: tuple[Slot, ...] = ()
        if room > 0:
            evictions, refused, note = self._evictions.find(ledger, known, grounds, room)
            if refused is not None:
                return HostOption(ledger, own, seconds, obstacle=refused, note=note)
        freed = sum(slot.device for slot in evictions)
        taken = (ledger.device_used - freed + known.device) / max(1, ledger.line)
        penalty = domains.disregarded(ledger) + (ledger.host.pressure is not Pressure.NONE)
        lost = self._images.lost(evictions)
        return HostOption(ledger, own, seconds, evictions, lost, penalty, taken)

    def _obstacle(self, ledger: Ledger, known: Known, own: Slot | None) -> tuple[Refused, str] | None:
        if note := unfit(known, ledger):
            return note
        if own is None and not ledger.takes:
            passing = ledger.host.condition is not Condition.READY
            reason = Refused.WAITS_FOR_HOST if passing else Refused.NO_ROOM
            return reason, f"it takes no new models: {closed(ledger)}"
        if own is None:
            return None
        if not ledger.keeps or not own.current:
            return (
                Refused.NO_ROOM,
                "its copy has to leave this host" if own.current else "it has an older revision there",
            )
        if own.touched or not own.state.settled or own.state is State.RESIDENT:
            return Refused.WAITS_FOR_ROOM, f"it is {own.state} there"
        if own.copy.retry > self._index.now:
            left = span(own.copy.retry - self._index.now)
            return Refused.FAILED_LATELY, f"{own.copy.failures} loads failed there; the next is tried in {left}"
        return None


def unfit(known: Known, ledger: Ledger) -> tuple[Refused, str] | None:
    """Return why a host could not hold the model even if it held no other model, or None."""
    model, host = known.model, ledger.host
    if model.device and model.device != host.device:
        return Refused.NO_DEVICE, f"its device class is {host.device or 'unset'}, not {model.device}"
    if known.device > host.line - host.reserved:
        line = size(host.line - host.reserved)
        return Refused.TOO_LARGE, f"it needs {size(known.device)} of device memory, and the host has {line} for models"
    return None


def closed(ledger: Ledger) -> str:
    """Return why a host takes no new model, as text. Call it only for a host whose `Ledger.takes` is False."""
    if ledger.host.pressure is Pressure.FULL:
        return "its memory is under full pressure"
    if len(ledger.slots) >= MODELS_PER_HOST:
        return f"it has {len(ledger.slots)} models, and the limit is {MODELS_PER_HOST}"
    return "it is not ready" if ledger.host.condition is Condition.CORDONED else "it is about to be removed"


class TopologyDomains:
    """The spread and affinity preferences of one model, and the nodes and zones of its copies that stay."""

    def __init__(self, known: Known) -> None:
        self._model = known.model
        self._copies = [slot.ledger.host for slot in known.slots if slot.stays]

    def disregarded(self, ledger: Ledger) -> int:
        """Return the number of spread and affinity preferences that a copy on this host violates.

        Counted are copies on other hosts of the same node or zone, absent models of `near`, and present ones of
        `apart`.
        """
        model, host, slots = self._model, ledger.host, ledger.slots
        others = [copy for copy in self._copies if copy.key != host.key]
        if model.spread is Spread.ZONE:
            close = sum((copy.zone == host.zone) + (copy.node == host.node) for copy in others)
        else:
            close = sum(copy.node == host.node for copy in others) if model.spread is Spread.NODE else 0
        return close + _absent(model.near, slots) + len(model.apart) - _absent(model.apart, slots)


def _absent(keys: tuple[ObjectKey, ...], slots: Mapping[ObjectKey, Slot]) -> int:
    return sum(key not in slots for key in keys) if keys else 0
