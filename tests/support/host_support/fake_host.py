"""A residency Host for tests: models sleep until a test wakes them, and operations are recorded."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from plimsoll_runtime.errors import DeviceLostError, PlimsollError
from plimsoll_runtime.residency.engines.base import Resident
from plimsoll_runtime.residency.errors import NotPlaced, OperationConflict, Refused
from plimsoll_runtime.residency.lifecycle.operations import OperationStatus
from plimsoll_runtime.residency.report import Counters, DeviceReport, ModelReport, NeedsReport, Report, SleepersReport
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, served_names
from plimsoll_runtime.residency.states import Level, State
from plimsoll_runtime.weights.files import ModelFiles


class FakeModel:
    def __init__(self, name: ModelName, spec: ModelSpec, files: ModelFiles | None) -> None:
        self.name = name
        self.spec = spec
        self.files = files
        self.state = State.IN_HOST
        self.awake = asyncio.Event()
        self.refusal: Exception | None = None
        self.engine: Any = None
        self.serial = 0
        self.active = 0
        self.waiting = 0


class FakeHost:
    """`engine_of` makes a model's engine when it wakes. `retry_after` is the delay that `refuse` sets."""

    def __init__(self, engine_of: Callable[[], Any], files: ModelFiles | None = None) -> None:
        self._engine_of = engine_of
        self._files = files
        self.instance = "fake"
        self.counters = Counters()
        self.sequence = 1
        self.models: dict[ModelName, FakeModel] = {}
        self.operations: dict[str, tuple[Any, ...]] = {}
        self.seen: list[tuple[Any, ...]] = []
        self.error: PlimsollError | None = None
        self.done = True
        self.closed = False
        self.started = False
        self.loss: DeviceLostError | None = None
        self._lost = asyncio.Event()
        self._serial = 0
        self._news = asyncio.Event()

    # Actions of a test.

    def add(self, name: str, *served: str, **spec: Any) -> FakeModel:
        parsed = ModelName.parse(name)
        source = str(self._files.root) if self._files is not None else f"/{name}"
        made = ModelSpec(revision="1", source=source, served_names=served, **spec)
        self.models[parsed] = FakeModel(parsed, made, self._files)
        self.tell()
        return self.models[parsed]

    def drop(self, name: str) -> None:
        del self.models[ModelName.parse(name)]
        self.tell()

    def rouse(self, model: FakeModel) -> None:
        self._serial += 1
        model.engine, model.serial, model.state = self._engine_of(), self._serial, State.RESIDENT
        model.awake.set()
        self.tell()

    def lull(self, model: FakeModel) -> None:
        model.state = State.IN_HOST
        model.awake.clear()
        self.tell()

    def refuse(self, model: FakeModel, error: Exception) -> None:
        model.refusal = error
        model.awake.set()

    def lose(self, error: DeviceLostError) -> None:
        self.loss = error
        self._lost.set()

    def tell(self) -> None:
        self.sequence += 1
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self._news.wait()

    # The interface for the server.

    async def start(self) -> None:
        self.started = True

    async def lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        self.closed = True
        for model in self.models.values():
            model.refusal = Refused("host_closing", "the host is closing", 5.0)
            model.awake.set()

    def placed(self) -> Mapping[ModelName, ModelSpec]:
        return {name: model.spec for name, model in self.models.items()}

    def files_of(self, name: ModelName) -> ModelFiles | None:
        model = self.models.get(name)
        return None if model is None else model.files

    def spec_of(self, name: ModelName) -> ModelSpec | None:
        model = self.models.get(name)
        return None if model is None else model.spec

    def report(self) -> Report:
        device = DeviceReport(
            kind="cpu", name="fake", capacity=100, line=90, reserved=0, used=10, free=80, pressure="none", findings=()
        )
        models = tuple(self._entry(model) for model in self.models.values())
        sleepers = SleepersReport(capacity=50, used=5)
        return Report(
            instance=self.instance,
            sequence=self.sequence,
            time=1.0,
            device=device,
            sleepers=sleepers,
            models=models,
            decisions=(),
        )

    async def changed(self, after: int, timeout: float) -> Report:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                while self.sequence <= after:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.report()

    @asynccontextmanager
    async def lease(self, name: ModelName, *, size: int = 0, wait: float | None = None) -> AsyncGenerator[Resident]:
        if name not in self.models:
            raise NotPlaced(f"{name} is not placed here")
        model = self.models[name]
        model.waiting += 1
        self.tell()
        try:
            await model.awake.wait()
        finally:
            model.waiting -= 1
            self.tell()
        if model.refusal is not None:
            raise model.refusal
        model.active += 1
        try:
            assert model.files is not None
            yield Resident(model.name, model.spec, model.files, model.engine, model.serial)
        finally:
            model.active -= 1
            self.tell()

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> OperationStatus:
        if self._is_new(operation, "place", name, spec, level):
            self.models[name] = FakeModel(name, spec, self._files)
            self.tell()
        return self._outcome(name, operation)

    def remove(self, name: ModelName, operation: str) -> OperationStatus:
        if self._is_new(operation, "remove", name):
            self._known(name)
            self.drop(str(name))
        return self._outcome(name, operation)

    def wake(self, name: ModelName, operation: str) -> OperationStatus:
        if self._is_new(operation, "wake", name):
            self.rouse(self._known(name))
        return self._outcome(name, operation)

    def sleep(self, name: ModelName, level: Level, operation: str) -> OperationStatus:
        if self._is_new(operation, "sleep", name, level):
            self.lull(self._known(name))
        return self._outcome(name, operation)

    def pin(self, name: ModelName, operation: str, **values: Any) -> OperationStatus:
        if self._is_new(operation, "pin", name, *sorted(values.items())):
            model = self._known(name)
            given = {key: value for key, value in values.items() if value is not None}
            model.spec = msgspec.structs.replace(model.spec, **given)
            self.tell()
        return self._outcome(name, operation)

    def _is_new(self, operation: str, *content: Any) -> bool:
        if operation in self.operations and self.operations[operation] != content:
            raise OperationConflict(f"the operation {operation!r} was another one")
        if operation in self.operations:
            return False
        if content[0] != "place":
            self._known(content[1])
        self.operations[operation] = content
        self.seen.append(content)
        return True

    def _known(self, name: ModelName) -> FakeModel:
        if name not in self.models:
            raise NotPlaced(f"{name} is not placed here")
        return self.models[name]

    def _outcome(self, name: ModelName, operation: str) -> OperationStatus:
        model = self.models.get(name)
        return OperationStatus(operation, self.done, None if model is None else self._entry(model), self.error)

    def _entry(self, model: FakeModel) -> ModelReport:
        return ModelReport(
            namespace=model.name.namespace,
            name=model.name.name,
            revision=model.spec.revision,
            served_names=served_names(model.name, model.spec),
            state=model.state,
            since=1.0,
            why="a test",
            active=model.active,
            waiting=model.waiting,
            weights=0,
            workspace=0,
            kv=0,
            host_bytes=0,
            needs=NeedsReport(weights=10, workspace=2, kv=3, image=10),
            rate=0.0,
            last_used=None,
            value=0.0,
            load_seconds=None,
            wake_seconds=None,
            loads=0,
            wakes=0,
            loading_seconds=0.0,
            error=None,
            pinned=model.spec.pinned,
            weight=model.spec.weight,
            priority=model.spec.priority,
        )
