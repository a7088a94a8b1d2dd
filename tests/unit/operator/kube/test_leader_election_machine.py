"""Several operators and one Lease, with lost, late, killed and skewed requests: never two act, and in the end one
does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from operator_support.chart_rights import lease_verbs

from plimsoll_operator.kube.api import LEASE_SECONDS, WRITE_SECONDS, Api, ApiError
from plimsoll_operator.kube.leader_election import DURATION, RENEW_EVERY, RETRY_EVERY, Lease, LeaseLostError
from plimsoll_operator.spec.identity import Object, ObjectKey

Json = dict[str, Any]
KEY = ObjectKey("system", "lease")
TICK = 0.5
OPERATORS = 3
VERBS = lease_verbs()


class Fate(Enum):
    """The outcome of a request at the next point of failure."""

    WELL = "it goes on"
    FAILS = "an error"
    LATE = "its client gives up, and the API server does it later all the same"


class Turn:
    """An awaitable at which a request waits for its fate."""

    def __await__(self) -> Generator[None, Fate, Fate]:
        return (yield)


@dataclass
class Storage:
    """The Lease in etcd."""

    lease: Json | None
    version: int = 1
    late: list[Json] = field(default_factory=list)

    def write(self, lease: Object, *, new: bool) -> Json:
        """Write with optimistic concurrency, like the API server."""
        known = self.lease and self.lease["metadata"].get("resourceVersion")
        if new is (self.lease is not None) or (not new and lease["metadata"].get("resourceVersion") != known):
            raise ApiError(409, "the object has been modified")
        self.version += 1
        uid = f"uid-{self.version}" if new else lease["metadata"]["uid"]
        metadata = {**lease["metadata"], "uid": uid, "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}
        return self.lease


class SlowApi(Api):
    """Each request waits twice: before the API server executes it, and before its response arrives.

    It grants the rights of the chart's Role.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def lease(self, key: ObjectKey) -> Object | None:
        await self._turn()
        self._authorize("get")
        found = self._storage.lease
        await self._turn()
        return found

    async def replace_lease(self, lease: Object) -> Object:
        return await self._write(lease, new=False)

    async def create_lease(self, lease: Object) -> Object:
        return await self._write(lease, new=True)

    async def _write(self, lease: Object, *, new: bool) -> Object:
        verb = "create" if new else "update"
        await self._turn(**({"lease": lease, "new": new} if verb in VERBS else {}))
        self._authorize(verb)
        written = self._storage.write(lease, new=new)
        await self._turn()
        return written

    def _authorize(self, verb: str) -> None:
        if verb not in VERBS:
            raise ApiError(403, f"leases is forbidden: User cannot {verb}")

    async def _turn(self, **late: Any) -> None:
        match await Turn():
            case Fate.FAILS:
                raise ApiError(503, "the API server is overloaded")
            case Fate.LATE:
                if late:
                    self._storage.late.append(late)
                raise ApiError(None, "timed out")


class Operator:
    """One process with its own clock, and at most one request for the Lease at a time."""

    def __init__(self, identity: str, storage: Storage, offset: float, rate: float, machine: Operators) -> None:
        self.identity, self._storage, self._offset, self._rate, self._machine = identity, storage, offset, rate, machine
        self.begin_anew()

    def begin_anew(self) -> None:
        """Restart as a new process, as after a kill."""
        self.lease = Lease(SlowApi(self._storage), KEY, self.identity, self.clock)
        self.work: Coroutine[Any, Any, Any] | None = None
        self.waits_since = 0.0

    def clock(self) -> float:
        return self._offset + self._machine.now * self._rate

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.go_on(None)

    def go_on(self, fate: Fate | None) -> None:
        """Continue to the next wait, or to the end."""
        assert self.work is not None
        if fate is not None and self._machine.now - self.waits_since > LEASE_SECONDS:
            fate = Fate.LATE
        try:
            self.work.send(fate)
            self.waits_since = self._machine.now
        except StopIteration:
            self.work = None
        except ApiError:
            self.work = None
        except LeaseLostError:
            assert not self.lease.held
            self.begin_anew()

    def kill(self) -> None:
        if self.work is not None:
            self.work.close()
        self.begin_anew()


class Operators(RuleBasedStateMachine):
    """Requests of several operators, interleaved arbitrarily, with time passing in between."""

    @initialize(
        there=st.booleans(),
        offsets=st.lists(st.sampled_from([0.0, 1e3, -7.5]), min_size=OPERATORS, max_size=OPERATORS),
        rates=st.lists(st.sampled_from([0.99, 1.0, 1.01]), min_size=OPERATORS, max_size=OPERATORS),
    )
    def begin(self, there: bool, offsets: list[float], rates: list[float]) -> None:
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "uid": "uid-1", "resourceVersion": "1"}
        self.now = 0.0
        self.storage = Storage({"metadata": metadata} if there else None)
        each = enumerate(zip(offsets, rates, strict=True))
        self.operators = [Operator(f"op-{i}", self.storage, offset, rate, self) for i, (offset, rate) in each]
        self.may_write_until = dict.fromkeys((o.identity for o in self.operators), float("-inf"))

    @rule(index=st.integers(0, OPERATORS - 1), fate=st.sampled_from([Fate.WELL] * 6 + list(Fate)))
    def act(self, index: int, fate: Fate) -> None:
        operator = self.operators[index]
        if operator.work is not None:
            operator.go_on(fate)
        else:
            operator.begin(operator.lease.renew() if operator.lease.held else operator.lease.take())

    @rule(index=st.integers(0, OPERATORS - 1), turns=st.integers(4, 6))
    def act_without_a_break(self, index: int, turns: int) -> None:
        for _ in range(turns):
            self.act(index, Fate.WELL)

    @precondition(lambda self: any(o.lease.held for o in self.operators))
    @rule()
    def stop_the_holder(self) -> None:
        """Release the Lease after the holder's writes have ended."""
        holder = next(o for o in self.operators if o.lease.held)
        if holder.work is None:
            self.may_write_until[holder.identity] = self.now
            holder.begin(holder.lease.release())

    @rule(index=st.integers(0, OPERATORS - 1), seconds=st.integers(1, DURATION + 5))
    def hang(self, index: int, seconds: int) -> None:
        """One operator does nothing for a while, and the others continue."""
        for _ in range(int(seconds / TICK)):
            for other in range(OPERATORS):
                if other != index:
                    self.act(other, Fate.WELL)
            self.pass_time(1)

    @rule(index=st.integers(0, OPERATORS - 1))
    def kill(self, index: int) -> None:
        self.operators[index].kill()

    @rule()
    def delete_the_lease(self) -> None:
        self.storage.lease = None

    @precondition(lambda self: self.storage.late)
    @rule()
    def a_late_write_lands(self) -> None:
        late = self.storage.late.pop()
        with contextlib.suppress(ApiError):  # a conflict
            self.storage.write(late["lease"], new=late["new"])

    @rule(ticks=st.sampled_from([1, 4, 8, 20, 60]))
    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK
            self.one_acts()

    @invariant()
    def one_acts(self) -> None:
        """No operator starts to act while a write of another may still be running."""
        acting = [o.identity for o in self.operators if o.lease.held]
        assert len(acting) <= 1
        for identity in acting:
            assert all(self.now >= end for other, end in self.may_write_until.items() if other != identity)
            self.may_write_until[identity] = self.now + WRITE_SECONDS

    def teardown(self) -> None:
        """Without further faults, one operator gets the Lease soon, and keeps it."""
        if not hasattr(self, "operators"):
            return
        self.storage.late.clear()
        for _ in range(int(3 * DURATION / RETRY_EVERY)):
            for index in range(OPERATORS):
                self.act_without_a_break(index, 5)
            self.pass_time(int(RETRY_EVERY / TICK))
        (holder,) = [o for o in self.operators if o.lease.held]
        for _ in range(20):
            for index in range(OPERATORS):
                self.act_without_a_break(index, 5)
            self.pass_time(int(RENEW_EVERY / TICK))
            assert holder.lease.held
        for operator in self.operators:
            operator.kill()


Operators.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOperators = Operators.TestCase
