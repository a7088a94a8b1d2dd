"""Counts the demand for each model and the responses of its revisions. Readers can wait for changes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable

from plimsoll_gateway.demand.records import DemandReport, ModelDemand, RevisionDemand
from plimsoll_gateway.demand.revision_totals import RevisionTotals
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore
from plimsoll_gateway.routing.loads import Standing

MOST_GONE = 1024
"""Deleted models whose counts are kept, so that the totals of a model that returns do not decrease."""
MOST_REVISIONS = 8
"""Revisions without pods whose totals are kept for each model."""

Look = Callable[[Replica], Standing]


class ModelCounters:
    """The counts of one model."""

    def __init__(self) -> None:
        self.asked = 0
        self.last_asked: float | None = None
        self.in_flight = 0
        self.held = 0
        self.totals: OrderedDict[str, RevisionTotals] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Whether no request for the model waits or is being answered."""
        return not self.in_flight and not self.held


class DemandCounters:
    """The counts of all models. Use on the event loop only. `look` returns the state of a replica."""

    def __init__(self, store: TableStore, look: Look, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._look = look
        self._clock = clock
        self._instance = uuid.uuid4().hex
        self._sequence = 0
        self._news = asyncio.Event()
        self._by_model: OrderedDict[ObjectKey, ModelCounters] = OrderedDict()
        self._ended = False
        store.listen(self._keep)

    def asking(self, key: ObjectKey) -> Asking:
        """Return a context for one request: it counts in `asked` from its start, and in `in_flight` until its end."""
        return Asking(self._counters(key), self._clock)

    def held(self, key: ObjectKey, change: int) -> None:
        """Add `change` to the number of requests that wait for a replica of the model."""
        counters = self._counters(key)
        before, counters.held = counters.held, counters.held + change
        if (before > 0) != (counters.held > 0):
            self._sequence += 1
            self._tell()

    def held_now(self, key: ObjectKey) -> int:
        """Return the number of requests that wait for a replica of the model."""
        counters = self._by_model.get(key)
        return 0 if counters is None else counters.held

    def totals(self, key: ObjectKey, revision: str) -> RevisionTotals:
        """Return the totals of one revision of a model, to be added to."""
        totals = self._counters(key).totals
        found = totals.get(revision)
        if found is None:
            found = totals[revision] = RevisionTotals()
        totals.move_to_end(revision)
        return found

    async def changed(self, after: int, seconds: float) -> None:
        """Wait until `sequence` differs from `after`, or until `seconds` have passed or the process stops.

        `sequence` grows when a model's first request is held, and when none is held any longer. A greater `after` comes
        from another process, and ends the wait immediately.
        """
        try:
            async with asyncio.timeout(seconds):
                while self._sequence == after and not self._ended:
                    await self._news.wait()
        except TimeoutError:
            return

    def end(self) -> None:
        """End all waits for changes: the process stops."""
        self._ended = True
        self._tell()

    def report(self) -> DemandReport:
        """Return the demand for all models."""
        table = self._store.current
        listed = {model.key: model for model in (table.models if table is not None else ())}
        models = [
            self._told(key, self._by_model.get(key, NOTHING), listed.get(key))
            for key in [*listed, *(key for key in self._by_model if key not in listed)]
        ]
        found = tuple(model for model in models if model.asked or model.revisions)
        return DemandReport(instance=self._instance, sequence=self._sequence, time=self._clock(), models=found)

    def _told(self, key: ObjectKey, counters: ModelCounters, model: Model | None) -> ModelDemand:
        replicas: dict[str, list[Replica]] = {}
        for replica in model.replicas if model is not None else ():
            replicas.setdefault(replica.revision, []).append(replica)
        revisions = sorted({*replicas, *counters.totals})
        return ModelDemand(
            namespace=key.namespace,
            name=key.name,
            held=counters.held,
            in_flight=counters.in_flight,
            asked=counters.asked,
            last_asked=counters.last_asked,
            revisions=tuple(
                self._revision(revision, replicas.get(revision, []), counters.totals.get(revision) or RevisionTotals())
                for revision in revisions
            ),
        )

    def _revision(self, revision: str, replicas: list[Replica], totals: RevisionTotals) -> RevisionDemand:
        ready = [self._look(replica) for replica in replicas if replica.ready]
        return RevisionDemand(
            revision=revision,
            replicas=len(ready),
            running=sum(one.running for one in ready),
            waiting=sum(one.waiting for one in ready),
            slots=sum(one.slots for one in ready),
            kv=max((one.kv for one in ready), default=0.0),
            requests=totals.requests,
            errors=totals.errors,
            broken=totals.broken,
            first_byte=totals.first_byte.spread(),
            event_gap=totals.event_gap.spread(),
        )

    def _counters(self, key: ObjectKey) -> ModelCounters:
        found = self._by_model.get(key)
        if found is None:
            found = self._by_model[key] = ModelCounters()
        return found

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _keep(self, table: RoutingTable) -> None:
        """Remove the counts of deleted models beyond MOST_GONE, and of revisions without pods beyond MOST_REVISIONS."""
        known = {model.key: model for model in table.models}
        gone = [key for key, counters in self._by_model.items() if key not in known and counters.idle]
        for key in gone[: max(0, len(gone) - MOST_GONE)]:
            del self._by_model[key]
        for key, counters in self._by_model.items():
            if len(counters.totals) > MOST_REVISIONS:
                there = {replica.revision for replica in known[key].replicas} if key in known else set()
                rest = [revision for revision in counters.totals if revision not in there]
                for revision in rest[: max(0, len(rest) - MOST_REVISIONS)]:
                    del counters.totals[revision]

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        for key, counters in self._by_model.items():
            assert counters.held >= 0, f"{key}: {counters.held} are held"
            assert counters.in_flight >= 0, f"{key}: {counters.in_flight} are in flight"
            for revision, totals in counters.totals.items():
                told = f"{key} {revision}: {totals.requests} requests, {totals.errors} errors, {totals.broken} broken"
                assert totals.errors <= totals.requests, told
                assert totals.broken <= totals.requests, told


NOTHING = ModelCounters()


class Asking:
    """The context of one request: counts it in `asked` from its start, and in `in_flight` until its end."""

    __slots__ = ("_clock", "_counters")

    def __init__(self, counters: ModelCounters, clock: Callable[[], float]) -> None:
        self._counters = counters
        self._clock = clock

    def __enter__(self) -> None:
        self._counters.asked += 1
        self._counters.in_flight += 1
        self._counters.last_asked = self._clock()

    def __exit__(self, *_: object) -> None:
        self._counters.in_flight -= 1
