"""The work queue: no object is lost, none is reconciled twice at a time, and failures back off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.virtual_time import run
from prometheus_client import REGISTRY

from plimsoll_cluster.keys import Key
from plimsoll_operator.controller.work_queue import LONGEST_DELAY, RESYNC_SECONDS, RESYNCED_A_SECOND, WorkQueue
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_telemetry.log_format import JsonLines

A, B = Key("Model", "team", "a"), Key("Pool", "team", "a")
Result = ReconcileResult | Exception

DONE, AGAIN, GONE = ReconcileResult(), ReconcileResult(again=timedelta(seconds=5)), ReconcileResult(gone=True)
PUT_OFF = ReconcileResult(again=timedelta(seconds=30), put_off=True)
RESULTS = st.sampled_from([DONE, DONE, AGAIN, GONE, PUT_OFF, ApiError(503, "overloaded"), ValueError("a bug")])


@dataclass
class Passes:
    """Reconciles that end as specified, and a record of them."""

    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    started: list[tuple[float, Key]] = field(default_factory=list)
    running: set[Key] = field(default_factory=set)
    ended: dict[Key, Result] = field(default_factory=dict)

    async def make(self, key: Key) -> ReconcileResult:
        assert key not in self.running, "two passes of one object at once"
        self.running.add(key)
        self.started.append((now(), key))
        await asyncio.sleep(self.seconds)
        self.running.discard(key)
        result = self.ended[key] = self.results.pop(0) if self.results else DONE
        if isinstance(result, Exception):
            raise result
        return result

    def times(self, key: Key = A) -> list[float]:
        return [time for time, started in self.started if started == key]


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def working(passes: Passes, workers: int = 2, *, resync: bool = False) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(clock=now)
    tasks = [asyncio.create_task(queue.work(passes.make)) for _ in range(workers)]
    tasks += [asyncio.create_task(queue.resync())] if resync else []
    yield queue
    assert not any(task.done() for task in tasks), "a worker has ended"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_lines_and_counts_of_a_pass_name_its_object(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(JsonLines("operator"))
    key = Key("ModelDeployment", "team", "m")
    failures = "plimsoll_operator_reconcile_failures_total", {"kind": key.kind}
    passes = "plimsoll_operator_reconciles_total", {"kind": key.kind}
    before = [REGISTRY.get_sample_value(*one) or 0.0 for one in (failures, passes)]

    async def main() -> None:
        async with working(Passes([ApiError(503, "overloaded")])) as queue:
            queue.add(key)
            await asyncio.sleep(60)
            logging.getLogger("other").warning("idle")

    run(main())
    failed, idle = map(json.loads, caplog.text.splitlines())
    assert (failed["object"], failed["model"]) == ("ModelDeployment team/m", "team/m")
    assert "object" not in idle
    assert [REGISTRY.get_sample_value(*one) for one in (failures, passes)] == [value + 1 for value in before]


STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.4, 3.0, 70.0]), st.sampled_from([A, B])), max_size=12)


@given(STEPS, st.lists(RESULTS, max_size=20), st.sampled_from([0.0, 0.5, 10.0]), st.integers(1, 3))
@settings(deadline=None)
def test_whatever_comes(
    steps: Sequence[tuple[float, Key]], results: list[Result], seconds: float, workers: int
) -> None:
    async def main() -> None:
        passes, added = Passes(list(results), seconds), dict[Key, float]()
        async with working(passes, workers) as queue:
            for wait, key in steps:
                await asyncio.sleep(wait)
                queue.add(key)
                added[key] = now()
                queue.check_integrity()
            for _ in range(400):
                await asyncio.sleep(5.0)
                queue.check_integrity()
            for key, time in added.items():
                assert passes.times(key)[-1] >= time
                assert passes.ended[key] in (DONE, GONE)
            assert not passes.running

    run(main())


def test_many_changes_make_one_pass_and_those_during_it_one_more() -> None:
    async def main() -> None:
        passes = Passes(seconds=1.0)
        async with working(passes) as queue:
            queue.add_all([A, A, A])
            await asyncio.sleep(0.5)
            queue.add_all([A, A])
            await asyncio.sleep(60)
        assert passes.times() == [0.0, 1.0]

    run(main())


def test_failures_wait_ever_longer_and_one_success_forgives_them() -> None:
    async def main() -> None:
        outage: list[Result] = [ApiError(None, "unreachable")] * 12
        passes = Passes([*outage, DONE, ApiError(503, "overloaded"), DONE])
        async with working(passes) as queue:
            queue.add(A)
            await asyncio.sleep(1000)
            first = passes.times()
            queue.add(A)
            await asyncio.sleep(1000)
        pauses = [after - before for before, after in pairwise(first)]
        assert len(pauses) == 12
        for count, pause in enumerate(pauses):
            longest = min(LONGEST_DELAY, 0.5 * 2**count)
            assert longest / 2 <= pause <= longest
        assert 1000.25 <= passes.times()[-1] <= 1000.5

    run(main())


def test_a_change_does_not_wait_for_the_back_off() -> None:
    async def main() -> None:
        passes = Passes([ApiError(503, "overloaded")] * 10)
        async with working(passes) as queue:
            queue.add(A)
            await asyncio.sleep(150)
            count, time = len(passes.started), now()
            queue.add(A)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert passes.times()[count:] == [time]

    run(main())


def test_it_comes_again_when_a_pass_says_so_unless_it_came_before() -> None:
    async def main() -> None:
        passes = Passes([AGAIN, AGAIN])
        async with working(passes) as queue:
            queue.add(A)
            await asyncio.sleep(2)
            queue.add(A)
            await asyncio.sleep(60)
        assert passes.times() == [0.0, 2.0, 7.0]

    run(main())


def test_all_that_is_known_is_looked_at_now_and_then_and_what_is_gone_is_not() -> None:
    async def main() -> None:
        passes = Passes([DONE, GONE])
        async with working(passes, 1, resync=True) as queue:
            queue.add_all([A, B])
            await asyncio.sleep(10 * RESYNC_SECONDS)
        assert 8 <= len(passes.times(A)) <= 13
        assert passes.times(B) == [0.0]

    run(main())


def test_an_empty_cluster_is_no_sign_of_ill_health() -> None:
    async def main() -> None:
        async with working(Passes(), resync=True) as queue:
            await asyncio.sleep(1000)
            assert now() - queue.last_success < 2 * RESYNC_SECONDS

    run(main())


def test_a_pass_that_was_put_off_is_no_success() -> None:
    async def main() -> None:
        passes = Passes([PUT_OFF, DONE])
        async with working(passes) as queue:
            await asyncio.sleep(3)
            queue.add(A)
            await asyncio.sleep(10)
            assert queue.last_success == 0.0
            await asyncio.sleep(60)
            assert (passes.times(), queue.last_success) == ([3.0, 33.0], 33.0)

    run(main())


def test_settled_passes_leave_the_loop_to_others() -> None:
    """Reconciles that never yield must not prevent the renewal of the Lease until the queue is empty."""

    async def main() -> None:
        made: list[Key] = []

        async def at_once(key: Key) -> ReconcileResult:
            made.append(key)
            return DONE

        queue = WorkQueue(clock=now)
        queue.add_all(Key("Model", "team", str(number)) for number in range(100))
        worker = asyncio.create_task(queue.work(at_once))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(made) < 5
        worker.cancel()
        await asyncio.wait({worker})

    run(main())


def test_resync_is_no_burst() -> None:
    async def main() -> None:
        passes = Passes()
        async with working(passes, resync=True) as queue:
            queue.add_all(Key("Model", "team", str(number)) for number in range(60))
            await asyncio.sleep(4 * RESYNC_SECONDS)
        later = Counter(int(time) for time, _ in passes.started if time > RESYNC_SECONDS * 1.1)
        assert max(later.values()) <= 3

    run(main())


def test_some_kinds_go_before_the_others_and_keep_their_order() -> None:
    async def main() -> None:
        made: list[Key] = []

        async def slowly(key: Key) -> ReconcileResult:
            made.append(key)
            await asyncio.sleep(1)
            return DONE

        queue = WorkQueue(clock=now, first=frozenset({"Pool"}))
        queue.add_all(Key("Model", "team", str(number)) for number in range(50))
        worker = asyncio.create_task(queue.work(slowly))
        await asyncio.sleep(2.5)
        queue.add_all([B, Key("Pool", "team", "0")])
        queue.check_integrity()
        await asyncio.sleep(3)
        worker.cancel()
        await asyncio.wait({worker})
        models = [Key("Model", "team", str(number)) for number in range(4)]
        assert made == [*models[:3], B, Key("Pool", "team", "0"), models[3]]

    run(main())


def test_resync_of_many_takes_no_more_of_a_second_than_of_some() -> None:
    keys = [Key("Model", "team", str(number)) for number in range(2000)]

    async def main() -> None:
        passes = Passes()
        async with working(passes, resync=True) as queue:
            queue.add_all(keys)
            await asyncio.sleep(600)
        again = [(time, key) for time, key in passes.started if time > 1]
        assert max(Counter(int(time) for time, _ in again).values()) <= 1.2 * RESYNCED_A_SECOND
        assert {key for _, key in again} == set(keys)

    run(main())


def test_health_is_the_last_success() -> None:
    async def main() -> None:
        passes = Passes([DONE, *[ApiError(503, "overloaded")] * 100])
        async with working(passes) as queue:
            queue.add(A)
            await asyncio.sleep(3)
            queue.add(A)
            await asyncio.sleep(500)
            assert queue.last_success == 0.0

    run(main())


def test_who_does_not_lead_stops_working() -> None:
    async def main() -> None:
        queue = WorkQueue(clock=now)
        queue.add(A)
        with pytest.raises(NotLeaderError):
            await queue.work(Passes([NotLeaderError("lost")]).make)

    run(main())
