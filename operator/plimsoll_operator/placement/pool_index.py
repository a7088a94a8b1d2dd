"""Indexes a pool's state for planning: ledgers by host, facts by model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.ledger import Known, Ledger, Slot
from plimsoll_operator.placement.records.host import Copy, Host
from plimsoll_operator.placement.records.level import Condition, State
from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.placement.records.pool import Demand, PoolState
from plimsoll_operator.placement.retention_value import decayed, retention


class PoolIndex:
    """A pool's models and hosts, sorted by key, so that plans do not depend on the order of the input."""

    def __init__(self, state: PoolState) -> None:
        self.state, self.now, self.rules = state, state.now, state.rules
        reports: dict[ObjectKey, list[tuple[Host, Copy]]] = defaultdict(list)
        for host in state.hosts:
            for copy in host.models:
                reports[copy.model].append((host, copy))
        demand = {entry.model: entry for entry in state.demand}
        self.models = {
            model.key: _known(model, reports[model.key], demand.get(model.key), self.now)
            for model in sorted(state.models, key=lambda model: model.key)
        }
        self._spread(reports)
        present = (host for host in state.hosts if host.condition is not Condition.LOST)
        self.ledgers = {host.key: self._open(host) for host in sorted(present, key=lambda host: host.key)}
        for known in self.models.values():
            if known.told:
                for slot in known.slots:
                    slot.rate = known.told / len(known.slots)

    def share(self, ledger: Ledger, known: Known | None = None) -> float:
        """Return the host's share of the pool's load divided by its share of the pool's lines, so 1 is fair.

        The share of the load is the mean of the shares of device memory (if all models were awake) and of requests.
        With `known`, count this model as another one on the host. For a host whose line is 0 the result is very large.
        """
        bulk, busy = (known.bulk, known.busy) if known is not None else (0, 0.0)
        bytes_, requests = (ledger.placed + bulk) / self.bulk, (ledger.asked + busy) / self.busy
        return (bytes_ + requests) / 2 * self.lines / max(1, ledger.line)

    def _spread(self, reports: Mapping[ObjectKey, Sequence[tuple[Host, Copy]]]) -> None:
        """Compute `bulk` and `busy` of each model, their totals over all wanted copies, and the sum of lines."""
        sizes = [known.device for known in self.models.values() if known.device]
        usual = sum(sizes) // len(sizes) if sizes else 1
        for known in self.models.values():
            known.bulk = known.device or usual
            rates = (decayed(copy.rate, self.now - host.time) for host, copy in reports[known.model.key])
            known.busy = max(known.told, sum(rates)) / max(1, known.model.placed)
        self.bulk = max(1, sum(known.bulk * known.model.placed for known in self.models.values()))
        self.busy = sum(known.busy * known.model.placed for known in self.models.values()) or 1.0
        self.lines = sum(host.line for host in self.state.hosts if host.condition is not Condition.LOST)

    def _open(self, host: Host) -> Ledger:
        ledger = Ledger(host)
        for copy in sorted(host.models, key=lambda copy: copy.model):
            slot = self._slot(ledger, copy)
            ledger.add(slot)
            if slot.known is not None:
                slot.known.slots.append(slot)
        return ledger

    def _slot(self, ledger: Ledger, copy: Copy) -> Slot:
        known = self.models.get(copy.model)
        current = known is not None and not copy.going and _fits(known.model, copy, ledger.host)
        rate = decayed(copy.rate, self.now - ledger.host.time)
        state = State.DRAINING if copy.going else copy.state
        held = _held(copy, known)
        return Slot(ledger, copy, known, state, held, 0 if copy.state.awake else copy.host, rate, current)

    def young(self, slot: Slot) -> float:
        """Return the seconds until an awake copy has been so for the minimum residency; 0 after that."""
        return max(0.0, slot.copy.since + self.rules.minimum_residency - self.now)

    def value(self, slot: Slot) -> float:
        """Return the retention value of a copy at its level. See `retention_value`."""
        known = slot.known
        if known is None:
            return 0.0
        if slot.state is State.IN_HOST:
            return retention(slot.rate, known.load - known.wake, known.model.weight, slot.image)
        return retention(slot.rate, self.seconds_back(slot), known.model.weight, slot.device)

    def worth(self, known: Known) -> float:
        """Return the retention value that another awake replica of the model would have."""
        awake = sum(slot.state.awake for slot in known.slots)
        return retention(known.rate / (awake + 1), known.wake, known.model.weight, known.device)

    def seconds_back(self, slot: Slot) -> float:
        """Return the seconds to wake a copy again after its device memory was freed.

        From its image if host memory is free for it now, else from files, although images of other models could be
        dropped.
        """
        known = slot.known
        if known is None:
            return 0.0
        return known.wake if slot.ledger.free_images >= known.image else known.load


def _known(model: Model, reports: Iterable[tuple[Host, Copy]], demand: Demand | None, now: float) -> Known:
    """Return a model's facts: the largest measured sizes and seconds of its revision, or the predictions."""
    need = model.need
    measured = image = 0
    load = wake = told = lost = 0.0
    waiting, waited, held = (demand.waiting, 0.0, 0) if demand is not None else (0, 0.0, 0)
    for host, copy in reports:
        if copy.revision == model.revision:
            measured = max(measured, copy.weights + copy.workspace)
            image = max(image, copy.host)
            load, wake = max(load, copy.load_seconds), max(wake, copy.wake_seconds)
        if host.condition is Condition.LOST:
            lost += decayed(copy.rate, now - host.time) if copy.state.awake else 0.0
        else:
            waiting += copy.waiting
            held += copy.waiting if _serves(copy, host, model) else 0
    if demand is not None:
        told = demand.rate
        waited = max(0.0, now - demand.since) if waiting and demand.since else 0.0
    return Known(
        model,
        device=(measured or need.weights + need.workspace) + need.kv,
        image=image or need.host or need.weights,
        load=load or model.load_seconds,
        wake=wake or model.wake_seconds,
        told=told,
        waiting=waiting,
        waited=waited,
        held=held,
        lost=lost,
    )


def _serves(copy: Copy, host: Host, model: Model) -> bool:
    """Return whether a host wakes the model by itself for the requests that wait there."""
    keeps = host.condition in (Condition.READY, Condition.CORDONED)
    return keeps and not copy.going and not copy.failures and _fits(model, copy, host)


def _fits(model: Model, copy: Copy, host: Host) -> bool:
    """Return whether a copy has the model's current revision, on a host of its device class. False if it is stopped."""
    return not model.stopped and model.revision == copy.revision and model.device in ("", host.device)


def _held(copy: Copy, known: Known | None) -> int:
    """Return the bytes of device memory that a copy holds. Of an idle one, count at most the minimum KV cache, because
    it returns the rest.
    """
    if not copy.state.on_device:
        return 0
    own = copy.weights + copy.workspace
    if not own and known is not None:
        return known.device
    if known is None or copy.active or copy.waiting or copy.going or copy.state is not State.RESIDENT:
        return own + (copy.kv if known is None else max(copy.kv, known.model.need.kv))
    return own + min(copy.kv, known.model.need.kv)
