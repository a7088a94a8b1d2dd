"""The content of the Lease for one candidate; test_leader_election_machine.py has several contending operators."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from typing import Any

import pytest

from plimsoll_operator.kube import leader_election as module
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.leader_election import DURATION, MARGIN, NOBODY, Lease, LeaseLostError
from plimsoll_operator.spec.identity import Object, ObjectKey

KEY = ObjectKey("system", "lease")


class StoredLease(Api):
    """The stored Lease. `errors` are raised in order before any other response."""

    def __init__(self, spec: dict[str, Any] | None = None, *, there: bool = True) -> None:
        self.version = 1
        self.errors: list[ApiError] = []
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "labels": {"app": "plimsoll"}, "resourceVersion": "1"}
        self.stored: dict[str, Any] | None = (
            {"metadata": metadata, **({"spec": spec} if spec else {})} if there else None
        )

    async def lease(self, key: ObjectKey) -> Object | None:
        assert key == KEY
        if self.errors:
            raise self.errors.pop(0)
        return copy.deepcopy(self.stored)

    async def replace_lease(self, lease: Object) -> Object:
        if self.stored is None or lease["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise ApiError(409, "the object has been modified")
        return self._keep(lease)

    async def deployment(self, key: ObjectKey) -> Object | None:
        assert key.namespace == KEY.namespace
        if key.name == "forbidden":
            raise ApiError(403, "deployments is forbidden")
        return None if key.name == "gone" else {"metadata": {"name": key.name, "uid": "u7"}}

    async def create_lease(self, lease: Object) -> Object:
        assert self.stored is None
        return self._keep(lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.stored is not None
        return dict(self.stored["spec"])

    def _keep(self, lease: Object) -> Object:
        self.version += 1
        self.stored = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self.version)}}
        return self.stored


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_the_charts_empty_lease_is_taken_at_once_and_stays_the_charts(clock: Clock) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    assert await lease.take() == "us"
    assert lease.held
    assert (stored.spec["holderIdentity"], stored.spec["leaseDurationSeconds"]) == ("us", DURATION)
    assert stored.spec["leaseTransitions"] == 1
    assert stored.stored is not None
    assert stored.stored["metadata"]["labels"] == {"app": "plimsoll"}


class SlowLease(StoredLease):
    """Its first write continues when its caller is cancelled, and is executed `when` the test says."""

    def __init__(self, when: str, spec: dict[str, Any] | None = None) -> None:
        super().__init__(spec)
        self.when, self.began = when, asyncio.Event()
        self.late: Object | None = None
        self.answer: ApiError | None = None

    async def lease(self, key: ObjectKey) -> Object | None:
        if self.when == "before the read":
            await self.carry_out()
        found = await super().lease(key)
        if self.when == "after the read":
            await self.carry_out()
        return found

    async def replace_lease(self, lease: Object) -> Object:
        if self.when != "at once" and not self.began.is_set():
            self.late = lease
            self.began.set()
            await asyncio.Event().wait()
        kept = await super().replace_lease(lease)
        if self.answer is not None:
            raise self.answer
        return kept

    async def carry_out(self) -> None:
        """Execute the late write, which is rejected if its version is old; no caller gets the response."""
        late, self.late = self.late, None
        if late is not None:
            with suppress(ApiError):
                await super().replace_lease(late)


@pytest.mark.parametrize("when", ["before the read", "after the read", "after all"])
@pytest.mark.parametrize("spec", [None, {"holderIdentity": "", "leaseDurationSeconds": 1}])
async def test_a_process_that_is_stopped_while_it_takes_the_lease_leaves_it_free(
    when: str, spec: dict[str, Any] | None, clock: Clock
) -> None:
    stored = SlowLease(when, spec)
    lease = Lease(stored, KEY, "us", clock)
    taking = asyncio.create_task(lease.acquire())
    await stored.began.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await lease.release()
    await stored.carry_out()
    assert stored.spec["holderIdentity"] == ""
    assert not lease.held
    assert await Lease(stored, KEY, "them", clock).take() == "them"


async def test_a_process_that_is_stopped_takes_nothing_from_the_next_holder(clock: Clock) -> None:
    stored = SlowLease("after all")
    lease = Lease(stored, KEY, "us", clock)
    taking = asyncio.create_task(lease.acquire())
    await stored.began.wait()
    taking.cancel()
    assert await Lease(stored, KEY, "them", clock).take() == "them"
    await lease.release()
    await stored.carry_out()
    assert stored.spec["holderIdentity"] == "them"


@pytest.mark.parametrize(("code", "holder"), [(504, ""), (422, "us")])
async def test_a_lease_whose_write_has_lost_its_answer_is_given_back(code: int, holder: str, clock: Clock) -> None:
    """A rejection is a response, so nothing has to be released."""
    stored = SlowLease("at once")
    stored.answer = ApiError(code, "no")
    lease = Lease(stored, KEY, "us", clock)
    with pytest.raises(ApiError):
        await lease.take()
    stored.answer = None
    await lease.release()
    assert stored.spec["holderIdentity"] == holder


async def test_the_hold_ends_before_anybody_else_may_take_it(clock: Clock) -> None:
    lease = Lease(StoredLease(), KEY, "us", clock)
    await lease.take()
    clock.now += DURATION - MARGIN - 0.01
    assert lease.held
    clock.now += 0.01
    assert not lease.held


async def test_renewing_keeps_when_it_was_acquired(clock: Clock) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    await lease.take()
    before = stored.spec
    clock.now += 3
    await lease.renew()
    after = stored.spec
    assert (after["acquireTime"], after["leaseTransitions"]) == (before["acquireTime"], before["leaseTransitions"])
    clock.now += DURATION - MARGIN - 1
    assert lease.held


async def test_anothers_lease_is_left_alone_until_it_has_not_changed_for_its_duration(clock: Clock) -> None:
    stored = StoredLease({"holderIdentity": "them", "leaseDurationSeconds": 30, "renewTime": "1970-01-01T00:00:00Z"})
    lease = Lease(stored, KEY, "us", clock)
    for _ in range(11):
        assert await lease.take() == "them"
        clock.now += 3
    assert await lease.take() == "us"
    assert lease.held


async def test_a_restarted_pod_goes_on_at_once(clock: Clock) -> None:
    stored = StoredLease({"holderIdentity": "us", "leaseDurationSeconds": DURATION, "leaseTransitions": 4})
    assert await Lease(stored, KEY, "us", clock).take() == "us"
    assert stored.spec["leaseTransitions"] == 4


async def test_a_missing_lease_is_made_for_nobody_and_taken_after_its_duration(clock: Clock) -> None:
    stored = StoredLease(there=False)
    lease = Lease(stored, KEY, "us", clock)
    for _ in range(4):
        assert await lease.take() == ""
        assert not lease.held
        assert stored.spec["holderIdentity"] == NOBODY
        clock.now += DURATION / 4
    clock.now += DURATION
    assert await lease.take() == "us"


@pytest.mark.parametrize(
    ("deployment", "owners"),
    [
        ("op", [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "op", "uid": "u7"}]),
        ("gone", None),
        ("forbidden", None),
        (None, None),
    ],
)
async def test_a_lease_that_is_made_goes_with_the_operators_deployment(
    clock: Clock, deployment: str | None, owners: list[dict[str, str]] | None
) -> None:
    stored = StoredLease(there=False)
    await Lease(stored, KEY, "us", clock, deployment=deployment).take()
    assert stored.stored is not None
    assert stored.stored["metadata"].get("ownerReferences") == owners


async def test_how_long_there_has_been_no_leader(clock: Clock) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    stored.errors = [ApiError(403, "forbidden")]
    clock.now += 70
    with pytest.raises(ApiError):
        await lease.take()
    assert lease.leaderless_seconds == 70
    await lease.take()
    assert lease.leaderless_seconds == 0
    other = Lease(stored, KEY, "them", clock)
    clock.now += 5
    assert await other.take() == "us"
    assert other.leaderless_seconds == 0, "somebody else leads"
    clock.now += 5
    assert other.leaderless_seconds == 5
    stored.stored = None
    clock.now += 5
    await other.take()
    await other.take()
    assert other.leaderless_seconds == 10, "a Lease without a holder is no leader"


async def test_a_holder_gives_it_up_so_that_the_next_one_need_not_wait(clock: Clock) -> None:
    stored = StoredLease()
    first, second = Lease(stored, KEY, "us", clock), Lease(stored, KEY, "them", clock)
    await first.take()
    assert await second.take() == "us"
    await first.release()
    assert not first.held
    assert await second.take() == "them"


async def test_who_does_not_hold_it_releases_nothing(clock: Clock) -> None:
    stored = StoredLease()
    holder, other = Lease(stored, KEY, "us", clock), Lease(stored, KEY, "them", clock)
    await holder.take()
    await other.release()
    assert stored.spec["holderIdentity"] == "us"


async def test_an_outage_at_the_end_stops_nobody_from_ending(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    await lease.take()
    stored.errors = [ApiError(None, "unreachable")]
    await lease.release()
    assert not lease.held
    assert "cannot release the Lease system/lease, which has to expire: unreachable" in caplog.text


@pytest.mark.parametrize(
    ("spec", "words"),
    [(None, "has been deleted"), ({"holderIdentity": "them"}, "is held by them"), ({}, "is held by no operator")],
)
async def test_a_lease_that_is_not_ours_any_more_is_lost(clock: Clock, spec: dict[str, Any] | None, words: str) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    await lease.take()
    stored.stored = None if spec is None else {**(stored.stored or {}), "spec": spec}
    with pytest.raises(LeaseLostError, match=words):
        await lease.renew()
    assert not lease.held


async def test_requests_that_fail_are_borne_as_long_as_the_hold_lasts(clock: Clock) -> None:
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    await lease.take()
    stored.errors = [ApiError(503, "overloaded"), ApiError(None, "unreachable"), ApiError(403, "forbidden")]
    clock.now += 5
    await lease.renew()
    await lease.renew()
    clock.now += DURATION - MARGIN
    with pytest.raises(LeaseLostError, match="could not be renewed for 11 s"):
        await lease.renew()


async def test_standing_by_is_told_once_for_each_reason(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_EVERY", 0)
    stored = StoredLease({"holderIdentity": "them", "leaseDurationSeconds": DURATION})
    lease = Lease(stored, KEY, "us", clock)
    stored.errors = [ApiError(403, "forbidden")] * 3
    with caplog.at_level("INFO", module.__name__):
        waiting = asyncio.create_task(lease.acquire())
        for _ in range(30):
            await asyncio.sleep(0)
        clock.now += DURATION + 1
        await waiting
    assert [record.getMessage() for record in caplog.records] == [
        "standing by: cannot get the Lease system/lease: forbidden",
        "standing by: the Lease system/lease is held by them",
        "this operator (us) holds the Lease system/lease",
    ]
    assert caplog.records[0].levelname == "ERROR", "waiting does not help"
    assert lease.held


async def test_keeping_it_ends_when_it_is_lost(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_EVERY", 0)
    stored = StoredLease()
    lease = Lease(stored, KEY, "us", clock)
    await lease.take()
    keeping = asyncio.create_task(lease.keep())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not keeping.done()
    stored.stored = None
    with pytest.raises(LeaseLostError):
        await keeping
