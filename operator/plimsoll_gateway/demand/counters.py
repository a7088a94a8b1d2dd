"""What each model is asked for, and how its revisions answer; who asks about it may wait for news."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from plimsoll_gateway.demand.records import DemandReport, ModelDemand, RevisionDemand
from plimsoll_gateway.demand.revision_totals import Tally
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, Table, TableStore
from plimsoll_gateway.routing.loads import Standing

MOST_GONE = 1024
"""Models that are remembered after they are gone, so that the totals of one that comes back do not fall."""
MOST_REVISIONS = 8
"""Revisions remembered of a model beside those that have pods."""

Look = Callable[[Replica], Standing]


class Account:
    """What is counted of one model."""

    def __init__(self) -> None:
        self.asked = 0
        self.last_asked: float | None = None
        self.in_flight = 0
        self.held = 0
        self.tallies: OrderedDict[str, Tally] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Whether no request for it is under way."""
        return not self.in_flight and not self.held


class Demand:
    """Changed on the event loop only. `look` says how a replica stands now."""

    def __init__(self, store: TableStore, look: Look, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._look = look
        self._clock = clock
        self._instance = uuid.uuid4().hex
        self._sequence = 0
        self._news = asyncio.Event()
        self._accounts: OrderedDict[ObjectKey, Account] = OrderedDict()
        self._ended = False
        store.listen(self._keep)

    def asking(self, key: ObjectKey) -> Asking:
        """A context for one request for a model, from its arrival to its end."""
        return Asking(self._account(key), self._clock)

    def held(self, key: ObjectKey, change: int) -> None:
        """So many more requests for a model wait for a replica, or so many fewer."""
        account = self._account(key)
        before, account.held = account.held, account.held + change
        if (before > 0) != (account.held > 0):
            self._sequence += 1
            self._tell()

    def held_now(self, key: ObjectKey) -> int:
        """Requests for a model that wait for a replica."""
        account = self._accounts.get(key)
        return 0 if account is None else account.held

    def tally(self, key: ObjectKey, revision: str) -> Tally:
        """Where to count what replicas of that revision answer."""
        tallies = self._account(key).tallies
        found = tallies.get(revision)
        if found is None:
            found = tallies[revision] = Tally()
        tallies.move_to_end(revision)
        return found

    async def changed(self, after: int, seconds: float) -> None:
        """Return once `sequence` is another than `after` (a greater one is another process's), or time is up."""
        try:
            async with asyncio.timeout(seconds):
                while self._sequence == after and not self._ended:
                    await self._news.wait()
        except TimeoutError:
            return

    def end(self) -> None:
        """Nobody waits for news any longer: the process stops."""
        self._ended = True
        self._tell()

    def report(self) -> DemandReport:
        """All of it."""
        table = self._store.current
        listed = {model.key: model for model in (table.models if table is not None else ())}
        models = [
            self._told(key, self._accounts.get(key, NOTHING), listed.get(key))
            for key in [*listed, *(key for key in self._accounts if key not in listed)]
        ]
        found = tuple(model for model in models if model.asked or model.revisions)
        return DemandReport(instance=self._instance, sequence=self._sequence, time=self._clock(), models=found)

    def _told(self, key: ObjectKey, account: Account, model: Model | None) -> ModelDemand:
        replicas: dict[str, list[Replica]] = {}
        for replica in model.replicas if model is not None else ():
            replicas.setdefault(replica.revision, []).append(replica)
        revisions = sorted({*replicas, *account.tallies})
        return ModelDemand(
            namespace=key.namespace,
            name=key.name,
            held=account.held,
            in_flight=account.in_flight,
            asked=account.asked,
            last_asked=account.last_asked,
            revisions=tuple(
                self._revision(revision, replicas.get(revision, []), account.tallies.get(revision) or Tally())
                for revision in revisions
            ),
        )

    def _revision(self, revision: str, replicas: list[Replica], tally: Tally) -> RevisionDemand:
        ready = [self._look(replica) for replica in replicas if replica.ready]
        return RevisionDemand(
            revision=revision,
            replicas=len(ready),
            running=sum(one.running for one in ready),
            waiting=sum(one.waiting for one in ready),
            slots=sum(one.slots for one in ready),
            kv=max((one.kv for one in ready), default=0.0),
            requests=tally.requests,
            errors=tally.errors,
            broken=tally.broken,
            first_byte=tally.first_byte.spread(),
            event_gap=tally.event_gap.spread(),
        )

    def _account(self, key: ObjectKey) -> Account:
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account()
        return found

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _keep(self, table: Table) -> None:
        """Forget the oldest of what is gone."""
        known = {model.key: model for model in table.models}
        gone = [key for key, account in self._accounts.items() if key not in known and account.idle]
        for key in gone[: max(0, len(gone) - MOST_GONE)]:
            del self._accounts[key]
        for key, account in self._accounts.items():
            if len(account.tallies) > MOST_REVISIONS:
                there = {replica.revision for replica in known[key].replicas} if key in known else set()
                rest = [revision for revision in account.tallies if revision not in there]
                for revision in rest[: max(0, len(rest) - MOST_REVISIONS)]:
                    del account.tallies[revision]

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        for key, account in self._accounts.items():
            assert account.held >= 0, f"{key}: {account.held} are held"
            assert account.in_flight >= 0, f"{key}: {account.in_flight} are in flight"
            for revision, tally in account.tallies.items():
                told = f"{key} {revision}: {tally.requests} requests, {tally.errors} errors, {tally.broken} broken"
                assert tally.errors <= tally.requests, told
                assert tally.broken <= tally.requests, told


NOTHING = Account()


class Asking:
    """One request while it is counted as in flight."""

    __slots__ = ("_account", "_clock")

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        self._account = account
        self._clock = clock

    def __enter__(self) -> None:
        self._account.asked += 1
        self._account.in_flight += 1
        self._account.last_asked = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._account.in_flight -= 1
