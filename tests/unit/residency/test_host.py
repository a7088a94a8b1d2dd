"""A host with fake engines: waiting, waking, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from operator_support.virtual_time import run
from residency_support.engines import Behaviour, FakeEngine, FakeEngines

from plimsoll_runtime.errors import (
    DeviceFailedError,
    DeviceLostError,
    EngineDeadError,
    ModelError,
    SourceError,
    UsageError,
)
from plimsoll_runtime.residency.engines.base import Found, Look
from plimsoll_runtime.residency.errors import DoesNotFit, NotPlaced, OperationConflict, Refused, Superseded
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.planner.view import Pressure
from plimsoll_runtime.residency.report import ModelReport
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.residency.states import Level

A, B, C = (ModelName("team", letter) for letter in "abc")
SPEC = ModelSpec(revision="1", source="file:///models/a")
SETTINGS = Settings(line=1.0, sleepers=4, minimum_residency=10, service_slice=20, patience=5, wait_seconds=60)
"""A model takes 4 to 5 of 10 bytes, so two fit."""

Test = Callable[[Host, FakeEngines], Coroutine[Any, Any, None]]


@asynccontextmanager
async def hosted(engines: FakeEngines, settings: Settings = SETTINGS) -> AsyncIterator[Host]:
    host = Host(engines, settings, wall=lambda: 1000.0 + asyncio.get_running_loop().time())
    await host.start()
    try:
        yield host
    finally:
        await host.close()
        assert not engines.alive
        assert not engines.images
        assert not engines.starting


def on_a_host(test: Test, settings: Settings = SETTINGS, **options: Any) -> None:
    async def main() -> None:
        engines = FakeEngines(**options)
        async with hosted(engines, settings) as host:
            await test(host, engines)
            host.check_integrity()

    run(main())


async def placed(host: Host, *names: ModelName, level: Level = Level.ON_DISK, **spec: Any) -> None:
    for name in names:
        host.place(name, msgspec.structs.replace(SPEC, **spec), level, f"place {name}")
        outcome = await host.settled(f"place {name}", 100)
        assert outcome.done
        assert outcome.error is None


def entry(host: Host, name: ModelName) -> ModelReport:
    return next(m for m in host.report().models if (m.namespace, m.name) == name)


async def use(host: Host, name: ModelName, seconds: float = 1.0) -> float:
    """Run one request, and return how long it waited."""
    loop = asyncio.get_running_loop()
    asked = loop.time()
    async with host.lease(name) as resident:
        assert resident.name == name
        waited = loop.time() - asked
        await asyncio.sleep(seconds)
    return waited


def the_engine(engines: FakeEngines, name: ModelName) -> FakeEngine:
    return next(engine for engine in engines.alive if engine.name == name)


def test_a_request_wakes_its_model_and_the_next_finds_it_awake() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        assert entry(host, A).state == "OnDisk"
        needs = {"weights": 2, "workspace": 1, "kv": 1, "image": 2}
        assert msgspec.to_builtins(entry(host, A).needs) == needs
        assert await use(host, A) == pytest.approx(5.0)
        assert await use(host, A) == 0.0
        seen = entry(host, A)
        assert (seen.state, seen.why, seen.loads, seen.wakes) == ("Resident", "woken for a request", 1, 0)
        assert seen.loading_seconds == pytest.approx(5.0)
        assert seen.load_seconds == pytest.approx(5.0), "a load ends when it answers, not with its image"
        assert (seen.weights, seen.workspace, seen.kv, seen.host_bytes) == (2, 1, 2, 2)
        assert seen.last_used == host.report().time - 1
        assert [d.action for d in host.report().decisions] == ["Loaded"]
        assert host.report().decisions[0].why == "woken for a request; it took 5.0 s"

    on_a_host(test)


def test_the_spec_of_a_model_is_the_one_that_was_placed_last() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        assert host.spec_of(A) is None
        await placed(host, A, level=Level.RESIDENT)
        assert host.spec_of(A) is host.spec_of(A) == SPEC
        other = msgspec.structs.replace(SPEC, revision="2", source="file:///models/b")
        async with host.lease(A):
            host.place(A, other, Level.ON_DISK, "again")
            assert host.spec_of(A) is other, "it is not in force yet, and requests are to be for it"
            host.remove(A, "gone")
            assert host.spec_of(A) is None

    on_a_host(test)


def test_two_that_fit_are_both_awake_and_the_third_waits_for_its_turn() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B, C)
        await asyncio.gather(use(host, A), use(host, B))
        assert {engine.name for engine in engines.alive} == {A, B}
        waited = await use(host, C)
        # No model is evicted before its minimum residency of 10 s; then C loads for 5 s.
        assert 13 <= waited <= 16
        assert len(engines.alive) == 2
        (gone,) = {A, B} - {engine.name for engine in engines.alive}
        assert entry(host, gone).state == "InHost"
        evicted = next(d for d in host.report().decisions if d.action == "Evicted")
        assert evicted.why.startswith(f"evicted {gone} for team/c: value ")
        assert [d.action for d in host.report().decisions] == ["Loaded", "Loaded", "Evicted", "Loaded"]
        assert await use(host, gone) < 20
        assert engines.starts[-1] == (gone, "wake")

    on_a_host(test)


def test_a_model_in_use_is_drained_for_its_turn_and_holds_new_requests() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B)
        long = asyncio.create_task(use(host, A, 100.0))
        await asyncio.sleep(10)
        other = asyncio.create_task(use(host, B))
        await asyncio.sleep(30)
        assert entry(host, A).state == "Draining"
        late = asyncio.create_task(use(host, A))
        await asyncio.sleep(1)
        assert (entry(host, A).active, entry(host, A).waiting) == (1, 1)
        with pytest.raises(Refused, match="was not awake within 60 s"):
            await other
        # No other model needs its memory any longer, so it resumes immediately.
        await asyncio.sleep(0.1)
        assert late.done() or entry(host, A).state == "Resident"
        await asyncio.gather(long, late)

    on_a_host(test, capacity=5)


def test_an_engine_that_dies_takes_nobody_with_it_and_comes_back_after_a_while() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B)
        await asyncio.gather(use(host, A), use(host, B))
        before = host.sequence
        async with host.lease(B) as untouched:
            the_engine(engines, A).die(EngineDeadError("signal 9"))
            await asyncio.sleep(1)
            assert untouched.engine.failure is None
        seen = entry(host, A)
        assert (seen.state, seen.error) == ("InHost", "signal 9")
        assert host.sequence > before
        assert host.counters.deaths == 1
        # 5 s of back-off, then a wake from the image, which outlived its engine.
        assert await use(host, A) == pytest.approx(5.5, abs=0.6)
        assert engines.starts[-1] == (A, "wake")
        assert entry(host, A).error is None

    on_a_host(test)


def test_a_kernels_fault_is_its_engines_alone() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B)
        await use(host, A)
        await use(host, B)
        the_engine(engines, A).die(DeviceFailedError("an illegal memory access was encountered"))
        assert await use(host, B) == 0.0
        assert 5.0 <= await use(host, A) < 10.0
        assert host.loss is None
        assert host.counters.deaths == 1

    on_a_host(test)


def test_a_lost_device_takes_the_host_with_it() -> None:
    """Waiting requests are refused, running ones may continue, and nothing new is started."""

    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B, C)
        await use(host, A)
        assert host.report().device.findings == ("a slice",)
        async with host.lease(B) as other:
            waiting = asyncio.create_task(use(host, C))
            await asyncio.sleep(0.1)
            the_engine(engines, A).die(DeviceLostError("the GPU is lost"))
            await host.lost()
            assert str(host.loss) == "the GPU is lost"
            assert host.report().device.findings == ("a slice", "the GPU is lost")
            with pytest.raises(Refused, match="the device has failed and the server is stopping: the GPU") as late:
                await waiting
            assert late.value.code == "device_lost"
            with pytest.raises(Refused) as later:
                await use(host, B)
            assert later.value.code == "device_lost"
            await asyncio.sleep(100)
            assert other.engine.failure is None
            assert [model.state for model in host.report().models] == ["InHost", "Resident", "OnDisk"]
        await host.close()
        assert other.engine.failure is host.loss

    on_a_host(test, findings=("a slice",))


def test_a_load_that_finds_the_device_lost_tells_the_host() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.behaviours[A].start_errors.append(DeviceLostError("no GPU is found"))
        with pytest.raises(Refused, match="no GPU is found") as caught:
            await use(host, A)
        assert caught.value.code == "device_lost"
        assert str(host.loss) == "no GPU is found"

    on_a_host(test)


def test_a_look_that_finds_the_device_lost_tells_the_host() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        engines.look_errors.append(DeviceLostError("it fell off the bus"))
        async with asyncio.timeout(SETTINGS.check_seconds + 1):
            await host.lost()
        sequence = host.sequence
        await asyncio.sleep(100)
        assert host.sequence == sequence, "nobody looks any more"

    on_a_host(test)


def test_an_engine_that_dies_again_and_again_is_not_refused_while_it_serves() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        await use(host, A)
        for _ in range(4):
            the_engine(engines, A).die(EngineDeadError("signal 9"))
            assert await use(host, A) < 10, "the first back-off, and a wake"
        assert host.counters.deaths == 4

    on_a_host(test)


def test_an_engine_that_dies_before_it_has_served_anybody_backs_off_ever_longer() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        for _ in range(2):
            async with host.lease(A):
                the_engine(engines, A).die(EngineDeadError("signal 9"))
        await asyncio.sleep(1)
        with pytest.raises(Refused, match="team/a cannot be loaded: signal 9"):
            await use(host, A)

    on_a_host(test)


def test_an_engine_that_dies_while_it_gives_way_does_not_go_on() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B)
        async with host.lease(A):
            host.wake(B, "wake b")
            while entry(host, A).state != "Draining":
                await asyncio.sleep(1)
            the_engine(engines, A).die(EngineDeadError("signal 9"))
            host.sleep(B, Level.ON_DISK, "not b after all")
            await asyncio.sleep(2)
            assert entry(host, A).state == "InHost"
        assert host.counters.deaths == 1
        await use(host, A)

    on_a_host(test, capacity=5)


def test_a_load_that_fails_tells_who_waits_and_backs_off_ever_longer() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.behaviours[A].start_errors = [ModelError("layer 3 is missing")] * 3
        with pytest.raises(Refused, match="team/a cannot be loaded: layer 3 is missing") as first:
            await use(host, A)
        assert (first.value.code, first.value.retry_after) == ("load_failed", 5.0)
        with pytest.raises(Refused) as second:
            await use(host, A)
        assert second.value.retry_after == 10.0
        with pytest.raises(Refused) as at_once:
            await use(host, A)
        assert at_once.value.retry_after == 10.0
        assert len(engines.starts) == 2
        assert (entry(host, A).state, entry(host, A).error) == ("OnDisk", "layer 3 is missing")
        assert host.report().device.used == 0

    on_a_host(test)


def test_a_load_that_hangs_is_ended() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.behaviours[A].hangs = {"start"}
        with pytest.raises(Refused, match="was not ready within 30 s"):
            await use(host, A)
        assert not engines.starting
        assert host.report().device.used == 0

    on_a_host(test, Settings(line=1.0, load_seconds=30))


def test_a_model_that_cannot_fit_is_refused_with_the_numbers_until_something_changes() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        engines.behaviours[A] = Behaviour(image=20)
        await placed(host, A)
        for _ in range(2):
            with pytest.raises(DoesNotFit, match=r"team/a needs .* but of the .* that may be granted"):
                await use(host, A)
        assert entry(host, A).state == "OnDisk"
        assert [d.action for d in host.report().decisions] == ["Refused"]

    on_a_host(test)


def test_waiting_is_bounded_in_number_and_bytes_and_cancelled_waits_count_for_nothing() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.behaviours[A].hangs = {"start"}

        async def ask(size: int) -> None:
            async with host.lease(A, size=size):
                raise AssertionError("it never wakes")

        waiting = [asyncio.create_task(ask(40)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match=r"requests of 0\.0 MiB already wait") as full:
            await ask(21)
        assert full.value.code == "too_many_waiting"
        waiting.append(asyncio.create_task(ask(0)))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="3 requests already wait for models to wake") as full:
            await ask(0)
        assert full.value.code == "too_many_waiting"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        host.check_integrity()
        assert entry(host, A).waiting == 0

    on_a_host(test, Settings(line=1.0, max_waiting=3, max_waiting_bytes=100, wait_seconds=3))


def test_a_load_begins_only_when_the_memory_is_really_free() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.taken_by_others = 8
        request = asyncio.create_task(use(host, A))
        await asyncio.sleep(10)
        assert engines.starts == []
        engines.taken_by_others = 0
        assert await request == pytest.approx(15.0, abs=0.3)
        engines.taken_by_others = 9
        await placed(host, B)
        with pytest.raises(Refused, match="something outside of the host uses the rest"):
            await use(host, B)

    on_a_host(test)


def test_a_model_that_turns_out_larger_than_the_line_is_ended() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.behaviours[A].grows = 1
        await use(host, A)
        assert entry(host, A).workspace == 2
        engines.behaviours[B].grows = 9
        await placed(host, B)
        with pytest.raises(Refused, match="it needs more memory than predicted"):
            await use(host, B)
        assert len(engines.alive) == 1

    on_a_host(test, capacity=11)


def test_levels_of_placing_and_sleeping() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        assert entry(host, A).state == "Resident"
        await placed(host, B, level=Level.IN_HOST)
        await asyncio.sleep(2)
        assert entry(host, B).state == "InHost"
        assert host.report().sleepers.used == 2
        assert not host.sleep(A, Level.IN_HOST, "s1").done
        assert (await host.settled("s1", 10)).done
        assert entry(host, A).state == "InHost"
        host.sleep(A, Level.ON_DISK, "s2")
        assert (await host.settled("s2", 10)).done
        assert (entry(host, A).state, entry(host, A).host_bytes) == ("OnDisk", 0)
        host.wake(A, "w")
        outcome = await host.settled("w", 10)
        assert outcome.model is not None
        assert (outcome.done, outcome.model.state) == (True, "Resident")
        with pytest.raises(UsageError, match="must be InHost or OnDisk"):
            host.sleep(A, Level.RESIDENT, "s3")

    on_a_host(test)


def test_what_an_operation_woke_may_sleep_again() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, B)
        await placed(host, A, level=Level.RESIDENT)
        await asyncio.sleep(15)
        await use(host, B)
        await asyncio.sleep(100)
        assert (entry(host, A).state, entry(host, B).state) == ("InHost", "Resident")

    on_a_host(test, capacity=5)


def test_a_request_that_is_given_up_as_it_is_let_in_is_not_in_flight() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        request = asyncio.create_task(use(host, A))
        while entry(host, A).state != "Resident":
            await host.changed(host.sequence, 100)
        assert entry(host, A).active == 1
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        assert entry(host, A).active == 0

    on_a_host(test)


def test_an_operation_has_one_effect_and_one_answer() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        first = host.place(A, SPEC, Level.RESIDENT, "one")
        assert not first.done
        assert not host.place(A, SPEC, Level.RESIDENT, "one").done
        await host.settled("one", 60)
        sequence = host.sequence
        again = host.place(A, SPEC, Level.RESIDENT, "one")
        assert again.done
        assert host.sequence == sequence
        with pytest.raises(OperationConflict, match="'one' was used for another change"):
            host.place(A, SPEC, Level.ON_DISK, "one")
        with pytest.raises(OperationConflict):
            host.remove(A, "one")
        with pytest.raises(UsageError, match="operation must be an id"):
            host.wake(A, "")
        host.remove(A, "two")
        gone = await host.settled("two", 60)
        assert (gone.done, gone.model, gone.error) == (True, None, None)
        assert host.remove(A, "two").done
        with pytest.raises(NotPlaced, match="team/a is not placed"):
            host.remove(A, "three")

    on_a_host(test)


def test_an_operation_that_fails_says_why() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        engines.behaviours[A].find_errors = [SourceError("no such model")]
        host.place(A, SPEC, Level.RESIDENT, "one")
        outcome = await host.settled("one", 60)
        assert (outcome.done, str(outcome.error)) == (True, "no such model")
        assert entry(host, A).state == "Absent"
        # The host retries by itself, but failed operations must be requested again.
        await asyncio.sleep(6)
        assert (entry(host, A).state, entry(host, A).error) == ("OnDisk", None)
        host.wake(A, "two")
        host.sleep(A, Level.IN_HOST, "three")
        assert isinstance((await host.settled("two", 1)).error, Superseded)

    on_a_host(test)


def test_removing_drains_and_refuses_who_waits() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        request = asyncio.create_task(use(host, A, 30.0))
        await asyncio.sleep(1)
        host.remove(A, "r")
        with pytest.raises(NotPlaced):
            await use(host, A)
        assert A not in host.placed()
        assert not (await host.settled("r", 20)).done
        await request
        assert (await host.settled("r", 5)).done
        assert host.report().models == ()
        assert host.report().device.used == 0

    on_a_host(test)


def test_another_spec_takes_the_place_of_the_first_one() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        host.place(A, msgspec.structs.replace(SPEC, revision="2", weight=2.0), Level.ON_DISK, "light")
        assert (entry(host, A).state, entry(host, A).revision, entry(host, A).weight) == ("Resident", "2", 2.0)
        other = msgspec.structs.replace(SPEC, revision="3", source="file:///models/b")
        host.place(A, other, Level.RESIDENT, "heavy")
        assert not (await host.settled("heavy", 1)).done
        assert (await host.settled("heavy", 20)).done
        assert (entry(host, A).revision, entry(host, A).state) == ("3", "Resident")
        assert [kind for _, kind in engines.starts] == ["load", "load"]

    on_a_host(test)


OTHER = msgspec.structs.replace(SPEC, revision="2", source="file:///models/b")


def test_another_spec_on_disk_is_there_when_it_was_fetched_and_not_when_the_first_one_has_gone() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        host.place(A, OTHER, Level.ON_DISK, "other")
        done = await host.settled("other", 100)
        assert (done.done, done.error) == (True, None)
        assert done.model is not None
        assert (done.model.revision, done.model.state) == ("2", "OnDisk")
        engines.behaviours[A].find_errors.append(SourceError("gone"))
        host.place(A, SPEC, Level.ON_DISK, "back")
        assert str((await host.settled("back", 100)).error) == "gone"

    on_a_host(test)


def test_a_sleep_is_done_where_the_fetch_fails_that_goes_on() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        engines.behaviours[A].find_errors.append(SourceError("gone"))
        host.place(A, SPEC, Level.RESIDENT, "place")
        host.sleep(A, Level.ON_DISK, "sleep")
        assert entry(host, A).state == "Fetching"
        done = await host.settled("sleep", 1)
        assert (done.done, done.error) == (True, None)
        assert done.model is not None
        assert done.model.state == "Absent"

    on_a_host(test)


def test_a_model_that_is_removed_while_it_is_fetched_is_not_fetched_again() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        find, asked = engines.find, []

        async def counted(name: ModelName, spec: ModelSpec) -> Found:
            asked.append(name)
            return await find(name, spec)

        engines.find = counted  # type: ignore[method-assign]
        host.place(A, SPEC, Level.RESIDENT, "place")
        await asyncio.sleep(0.1)
        host.remove(A, "remove")
        assert (await host.settled("remove", 100)).done
        await asyncio.sleep(100)
        assert asked == [A]

    on_a_host(test)


def test_a_fetch_that_fails_as_another_spec_is_placed_is_not_that_ones_failure() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        find = engines.find

        async def late(name: ModelName, spec: ModelSpec) -> Found:
            if spec.revision == "1":
                host.place(A, OTHER, Level.RESIDENT, "other")
                raise SourceError("gone")
            return await find(name, spec)

        engines.find = late  # type: ignore[method-assign]
        host.place(A, SPEC, Level.ON_DISK, "first")
        await asyncio.sleep(1)
        done = await host.settled("other", 100)
        assert (done.done, done.error) == (True, None)
        assert (entry(host, A).revision, entry(host, A).state) == ("2", "Resident")

    on_a_host(test)


def test_pinned_models_stay_and_may_not_exceed_the_line_together() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B, C)
        host.pin(A, "a", pinned=True)
        host.pin(B, "b", pinned=True)
        await asyncio.sleep(15)
        assert {engine.name for engine in engines.alive} == {A, B}
        with pytest.raises(DoesNotFit, match=r"pinned together, team/a, team/b, team/c would take"):
            host.pin(C, "c", pinned=True)
        with pytest.raises(DoesNotFit):
            await use(host, C)
        with pytest.raises(UsageError, match="unpin it first"):
            host.sleep(A, Level.IN_HOST, "s")
        host.pin(B, "b2", pinned=False, weight=0.5, priority=-1)
        assert (entry(host, B).pinned, entry(host, B).weight, entry(host, B).priority) == (False, 0.5, -1)
        await use(host, C)
        assert {engine.name for engine in engines.alive} == {A, C}

    on_a_host(test)


def test_nothing_is_loaded_under_full_pressure() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B)
        await use(host, A)
        engines.pressure = Pressure.FULL
        await asyncio.sleep(2.1)
        assert host.report().device.pressure == "full"
        with pytest.raises(Refused) as refused:
            await use(host, B)
        assert refused.value.code == "memory_pressure"
        await asyncio.sleep(15)
        assert entry(host, A).state == "OnDisk"
        engines.pressure = Pressure.NONE
        await asyncio.sleep(5)
        await use(host, B)

    on_a_host(test)


def test_a_look_that_fails_does_not_end_the_watch_over_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Look:
        raise OSError(24, "Too many open files")

    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A)
        engines.pressure = Pressure.FULL
        await asyncio.sleep(2.1)
        assert host.report().device.pressure == "full"
        with monkeypatch.context() as broken:
            broken.setattr(engines, "look", fails)
            await asyncio.sleep(6)
        engines.pressure = Pressure.NONE
        await asyncio.sleep(2.1)
        assert host.report().device.pressure == "none"
        await use(host, A)
        said = [record for record in caplog.records if "cannot measure the memory" in record.message]
        assert [record.levelname for record in said if record.levelname != "DEBUG"] == ["ERROR"], "once, not every time"
        assert "Too many open files" in caplog.text

    on_a_host(test)


def test_a_report_can_be_awaited_and_numbers_alone_do_not_change_it() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT)
        loop = asyncio.get_running_loop()
        sequence, began = host.sequence, loop.time()
        await use(host, A)
        assert (await host.changed(sequence, 5.0)).sequence == sequence
        assert loop.time() == began + 6.0
        waiting = asyncio.create_task(host.changed(sequence, 100.0))
        await asyncio.sleep(1)
        host.sleep(A, Level.IN_HOST, "s")
        report = await waiting
        assert report.sequence > sequence
        assert loop.time() < began + 10
        assert (await host.changed(0, 100.0)).sequence >= report.sequence

    on_a_host(test)


def test_the_report_is_what_the_design_says() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, level=Level.RESIDENT, token="secret")
        text = msgspec.json.encode(host.report())
        assert b"secret" not in text
        assert "secret" not in repr(host.placed())
        report = msgspec.json.decode(text)
        assert set(report) == {"instance", "sequence", "time", "device", "sleepers", "models", "decisions"}
        assert set(report["device"]) == {
            "kind", "name", "capacity", "line", "reserved", "used", "free", "pressure", "findings"
        }  # fmt: skip
        assert set(report["models"][0]) == {
            "namespace", "name", "revision", "servedNames", "state", "since", "why", "weights", "workspace", "kv",
            "hostBytes", "active", "waiting", "rate", "lastUsed", "value", "loadSeconds", "wakeSeconds", "loads",
            "wakes", "pinned", "weight", "priority", "error", "needs", "loadingSeconds",
        }  # fmt: skip
        assert set(report["decisions"][0]) == {"sequence", "time", "namespace", "name", "action", "why"}
        assert report["models"][0]["servedNames"] == ["a"]

    on_a_host(test)


def test_closing_refuses_who_waits() -> None:
    async def main() -> None:
        engines = FakeEngines()
        async with hosted(engines) as host:
            await placed(host, A)
            request = asyncio.create_task(use(host, A))
            await asyncio.sleep(1)
        with pytest.raises(Refused, match="shutting down"):
            await request
        await host.close()

    run(main())


def test_on_a_gpu_images_stay_with_the_sleepers() -> None:
    async def test(host: Host, engines: FakeEngines) -> None:
        await placed(host, A, B, C)
        await asyncio.gather(use(host, A), use(host, B))
        assert host.report().sleepers.used == 4
        await use(host, C)
        # There is no memory for a third image, so C has none and loads from disk each time.
        assert entry(host, C).host_bytes == 0
        host.check_integrity()

    on_a_host(test, shared=False)
