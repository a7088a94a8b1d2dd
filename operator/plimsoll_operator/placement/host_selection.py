"""Where a model should be awake: every host as an option, and the best of them."""

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
    """Weighs hosts for a model."""

    def __init__(self, index: PoolIndex, evictions: EvictionSets) -> None:
        self._index, self._evictions, self._images = index, evictions, ImageMemory(index)

    def options(self, known: Known, grounds: Grounds) -> list[HostOption]:
        """Every host, the best first; those with an obstacle last."""
        domains = TopologyDomains(known)
        found = [self._option(ledger, known, grounds, domains) for ledger in self._index.ledgers.values()]
        return sorted(found, key=lambda option: (option.obstacle is not None, *option.order))

    def files(self, known: Known) -> list[HostOption]:
        """Hosts where its files could lie, the best first: such a copy takes no memory until it wakes.

        All else being equal they are spread by what they would take and by how much they are asked for.
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
            return reason, f"nothing new is placed on it: {closed(ledger)}"
        if own is None:
            return None
        if not ledger.keeps or not own.current:
            return Refused.NO_ROOM, "it is to leave this host" if own.current else "an older revision lies there"
        if own.touched or not own.state.settled or own.state is State.RESIDENT:
            return Refused.WAITS_FOR_ROOM, f"it is {own.state} there"
        if own.copy.retry > self._index.now:
            left = span(own.copy.retry - self._index.now)
            return Refused.FAILED_LATELY, f"{own.copy.failures} loads failed there; the next is tried in {left}"
        return None


def unfit(known: Known, ledger: Ledger) -> tuple[Refused, str] | None:
    """Why a host could not hold a model even if it held nothing else."""
    model, host = known.model, ledger.host
    if model.device and model.device != host.device:
        return Refused.NO_DEVICE, f"its device is {host.device or 'of no class'}, not {model.device}"
    if known.device > host.line - host.reserved:
        return Refused.TOO_LARGE, f"{size(known.device)} are more than its {size(host.line - host.reserved)}"
    return None


def closed(ledger: Ledger) -> str:
    """Why nothing new is placed on a host."""
    if ledger.host.pressure is Pressure.FULL:
        return "its memory is under full pressure"
    if len(ledger.slots) >= MODELS_PER_HOST:
        return f"it has {len(ledger.slots)} models, and a host takes {MODELS_PER_HOST}"
    return "it is not ready" if ledger.host.condition is Condition.CORDONED else "it is about to go"


class TopologyDomains:
    """Nodes and zones that a model's copies lie in, and the models whose hosts it likes or shuns."""

    def __init__(self, known: Known) -> None:
        self._model = known.model
        self._copies = [slot.ledger.host for slot in known.slots if slot.stays]

    def disregarded(self, ledger: Ledger) -> int:
        """Wishes that another copy on this host would disregard."""
        model, host, slots = self._model, ledger.host, ledger.slots
        others = [copy for copy in self._copies if copy.key != host.key]
        if model.spread is Spread.ZONE:
            close = sum((copy.zone == host.zone) + (copy.node == host.node) for copy in others)
        else:
            close = sum(copy.node == host.node for copy in others) if model.spread is Spread.NODE else 0
        return close + _absent(model.near, slots) + len(model.apart) - _absent(model.apart, slots)


def _absent(keys: tuple[ObjectKey, ...], slots: Mapping[ObjectKey, Slot]) -> int:
    return sum(key not in slots for key in keys) if keys else 0
