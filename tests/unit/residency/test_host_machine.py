"""A host under random events: every request is served or refused, and nothing is left in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from operator_support.virtual_time import VirtualTimeLoop
from residency_support.engines import Behaviour, FakeEngines

from plimsoll_runtime.api.telemetry.host_metrics import HostCollector
from plimsoll_runtime.errors import EngineDeadError, ModelError, SourceError, UsageError
from plimsoll_runtime.residency.errors import DoesNotFit, NotPlaced, OperationConflict, Refused
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.lifecycle.operations import OperationStatus
from plimsoll_runtime.residency.planner.view import Pressure
from plimsoll_runtime.residency.report import Report
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.residency.states import Level

NAMES = [ModelName("team", letter) for letter in "abcd"]
SETTINGS = Settings(
    line=0.9, sleepers=5, minimum_residency=5, service_slice=8, patience=4, wait_seconds=50, max_waiting=6,
    load_seconds=20, free_seconds=3, first_back_off=2, longest_back_off=16, check_seconds=1,
)  # fmt: skip
LONGEST_ANSWER = 20.0

names = st.sampled_from(NAMES)
behaviours = st.builds(
    Behaviour,
    image=st.integers(1, 4),
    private=st.integers(0, 1),
    workspace=st.integers(0, 2),
    kv_minimum=st.integers(1, 2),
    kv_useful=st.integers(2, 6),
    find_seconds=st.sampled_from([0.0, 1.0]),
    load_seconds=st.sampled_from([0.5, 5.0]),
    stop_seconds=st.sampled_from([0.0, 2.0]),
    grows=st.sampled_from([0, 0, 0, 1, 30]),
    kv_held=st.integers(0, 3),
)
levels = st.sampled_from(Level)


class Life(RuleBasedStateMachine):
    """Placements, requests, deaths, hangs, cancellations, operations and pressure in any order."""

    @initialize(how=st.lists(behaviours, min_size=4, max_size=4), capacity=st.integers(6, 20), shared=st.booleans())
    def begin(self, how: list[Behaviour], capacity: int, shared: bool) -> None:
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.engines = FakeEngines(capacity, shared=shared)
        self.engines.behaviours.update(zip(NAMES, how, strict=True))
        self.asked: list[asyncio.Task[str]] = []
        self.ids = 0
        self.sent: dict[str, tuple[str, OperationStatus]] = {}
        self.sequence = -1
        self.run(self.start())

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    async def start(self) -> None:
        self.host = Host(self.engines, SETTINGS, wall=self.loop.time)
        await self.host.start()

    async def ask(self, name: ModelName, seconds: float, size: int) -> str:
        """Run one request, and return its result."""
        try:
            async with self.host.lease(name, size=size) as resident:
                assert resident.name == name
                engine = resident.engine
                ended = asyncio.create_task(engine.wait_dead())
                await asyncio.wait([ended], timeout=seconds)
                ended.cancel()
                if engine.failure is None:
                    assert engine in self.engines.alive, "the engine went while a request was on it"
                    return "answered"
                return "error"
        except (Refused, NotPlaced, DoesNotFit) as error:
            return error.code

    def send(self, what: str, call: Any, *arguments: Any, **named: Any) -> None:
        """Send an operation with a new id; its result is a status or a host error."""
        self.ids += 1
        text = f"operation-{self.ids}"

        async def do() -> OperationStatus:
            return call(*arguments, text, **named)  # type: ignore[no-any-return]

        with suppress(NotPlaced, DoesNotFit, UsageError):
            self.sent[text] = (what, self.run(do()))

    @rule(name=names, level=levels, revision=st.integers(1, 2), pinned=st.sampled_from([False, False, True]))
    def place(self, name: ModelName, level: Level, revision: int, pinned: bool) -> None:
        spec = ModelSpec(revision=str(revision), source=f"file:///models/{revision}", pinned=pinned)
        self.send("place", self.host.place, name, spec, level)

    @rule(name=names)
    def remove(self, name: ModelName) -> None:
        self.send("remove", self.host.remove, name)

    @rule(name=names)
    def wake(self, name: ModelName) -> None:
        self.send("wake", self.host.wake, name)

    @rule(name=names, level=levels)
    def sleep(self, name: ModelName, level: Level) -> None:
        self.send("sleep", self.host.sleep, name, level)

    @rule(name=names, pinned=st.none() | st.booleans(), weight=st.none() | st.sampled_from([0.1, 10.0]))
    def pin(self, name: ModelName, pinned: bool | None, weight: float | None) -> None:
        self.send("pin", self.host.pin, name, pinned=pinned, weight=weight)

    @rule(data=st.data(), name=names)
    def send_again(self, data: st.DataObject, name: ModelName) -> None:
        if not self.sent:
            return
        text = data.draw(st.sampled_from(sorted(self.sent)))
        what, _ = self.sent[text]

        async def do() -> None:
            before = self.host.sequence
            try:
                self.host.wake(name, text)
            except OperationConflict:
                pass
            except NotPlaced:
                raise AssertionError("it is known, so it is no new one") from None
            else:
                assert what == "wake"
            assert self.host.sequence == before

        self.run(do())

    @rule(name=names, seconds=st.floats(0.1, LONGEST_ANSWER), size=st.integers(0, 100))
    def request(self, name: ModelName, seconds: float, size: int) -> None:
        async def do() -> None:
            self.asked.append(asyncio.create_task(self.ask(name, seconds, size)))
            await asyncio.sleep(0)

        self.run(do())

    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        under_way = [task for task in self.asked if not task.done()]
        if under_way:
            data.draw(st.sampled_from(under_way)).cancel()
            self.run(asyncio.sleep(0))

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        alive = sorted(self.engines.alive, key=lambda engine: engine.name)
        if alive:
            data.draw(st.sampled_from(alive)).die(EngineDeadError("signal 9"))

    @rule(name=names, kind=st.sampled_from(["find", "start", "image"]))
    def fail(self, name: ModelName, kind: str) -> None:
        how = self.engines.behaviours[name]
        if kind == "find":
            how.find_errors.append(SourceError("the hub is away"))
        else:
            how.start_errors.append(EngineDeadError("signal 9") if kind == "start" else ModelError("another machine"))

    @rule(name=names, hangs=st.booleans())
    def hang(self, name: ModelName, hangs: bool) -> None:
        self.engines.behaviours[name].hangs = {"start"} if hangs else set()

    @rule(pressure=st.sampled_from(Pressure), others=st.integers(0, 6), reserved=st.integers(0, 2))
    def memory(self, pressure: Pressure, others: int, reserved: int) -> None:
        self.engines.pressure = pressure
        self.engines.taken_by_others, self.engines.reserved = others, reserved

    @rule(data=st.data(), used=st.integers(0, 100))
    def kv_cache_fills(self, data: st.DataObject, used: int) -> None:
        alive = sorted(self.engines.alive, key=lambda engine: engine.name)
        if alive:
            data.draw(st.sampled_from(alive)).blocks_used = used

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @invariant()
    def everything_is_in_order(self) -> None:
        if not hasattr(self, "host"):
            return
        self.host.check_integrity()
        self.engines.check()
        report = self.host.report()
        msgspec.json.encode(report)
        assert report.sequence >= self.sequence
        self.sequence = report.sequence
        assert report.sleepers.used <= report.sleepers.capacity
        granted = sum(model.weights + model.workspace + model.kv for model in report.models)
        assert granted <= report.device.line
        self.memory_adds_up(report)
        assert sum(model.waiting for model in report.models) <= SETTINGS.max_waiting
        working = {engine.name for engine in self.engines.alive} | set(self.engines.starting)
        assert {(n.namespace, n.name) for n in working} <= {
            (m.namespace, m.name) for m in report.models if m.state in ("Waking", "Resident", "Draining")
        }

    def memory_adds_up(self, report: Report) -> None:
        """The owners in metrics add up to what is used, and to the line with what is free."""
        families = {family.name: family for family in HostCollector(self.host).collect()}
        owners = sum(sample.value for sample in families["plimsoll_host_device_used_bytes"].samples)
        ((line,), (free,)) = (families[f"plimsoll_host_device_{of}_bytes"].samples for of in ("line", "free"))
        assert owners == report.device.used
        assert owners + free.value == max(line.value, owners)

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        try:
            self.run(self.end())
        finally:
            self.run(self.host.close())
            self.loop.close()
            asyncio.set_event_loop(None)

    async def end(self) -> None:
        """In the end every request has a result, and nothing is left."""
        self.engines.pressure, self.engines.taken_by_others, self.engines.reserved = Pressure.NONE, 0, 0
        for how in self.engines.behaviours.values():
            how.hangs, how.find_errors, how.start_errors = set(), [], []
        await asyncio.sleep(SETTINGS.wait_seconds + LONGEST_ANSWER + 60)
        assert all(task.done() for task in self.asked)
        for task in self.asked:
            assert task.cancelled() or task.result() in {
                "answered", "error", "not_placed", "does_not_fit", "too_many_waiting", "waited_too_long",
                "memory_pressure", "load_failed",
            }  # fmt: skip
        for name in list(self.host.placed()):
            self.host.remove(name, f"remove {name}")
        await asyncio.sleep(60)
        for text in self.sent:
            outcome = await self.host.settled(text, 0)
            assert outcome.done, (text, self.sent[text])
            assert outcome.error is None or str(outcome.error)
        report = self.host.report()
        assert report.models == ()
        assert (report.device.used, report.sleepers.used) == (report.device.reserved, 0)
        assert not self.engines.alive
        assert not self.engines.images
        await self.host.close()
        assert len(asyncio.all_tasks()) == 1


TestLife = Life.TestCase
TestLife.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
