"""Fake engines without processes. A test sets the time and memory that they take, and their failures.

They check memory as the kernel would: exceeding the capacity fails the test.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.errors import EngineDeadError, PlimsollError
from plimsoll_runtime.residency.engines.base import Device, Found, Image, Look, Started
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.view import Pressure
from plimsoll_runtime.residency.sizes import Sizes
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.weights.files import ModelFiles


@dataclass
class Behaviour:
    """Behaviour of one model's engine. Each error is raised once; `hangs`: calls that never return ("find", "start").

    `private`: bytes of weights outside of the image. `grows`: bytes of workspace beyond the prediction.
    """

    image: int = 2
    private: int = 0
    workspace: int = 1
    kv_minimum: int = 1
    kv_useful: int = 2
    find_seconds: float = 0.5
    load_seconds: float = 4.0
    wake_seconds: float = 1.0
    stop_seconds: float = 0.5
    grows: int = 0
    kv_held: int = 0
    find_errors: list[PlimsollError] = field(default_factory=list)
    start_errors: list[PlimsollError] = field(default_factory=list)
    hangs: set[str] = field(default_factory=set)


class FakeImage:
    """An image that only counts bytes."""

    def __init__(self, size: int, closed: Callable[[FakeImage], None]) -> None:
        self._size = size
        self._closed = closed
        self.complete = False

    @property
    def nbytes(self) -> int:
        return self._size if self.complete else 0

    def close(self) -> None:
        self._closed(self)


class FakeEngine:
    """A fake engine process."""

    def __init__(self, engines: FakeEngines, name: ModelName, grant: Grant, inner: Any) -> None:
        self._engines = engines
        self.name = name
        self.grant = grant
        self.kv_bytes = grant.kv
        self.failure: PlimsollError | None = None
        self.blocks_used = 0
        self._inner = inner
        self._dead = asyncio.Event()

    @property
    def info(self) -> EngineInfo:
        return cast(EngineInfo, self._inner.info)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(blocks_total=100, blocks_used=self.blocks_used)

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        return cast(AsyncGenerator[RequestOutput, None], self._inner.generate(request))

    def use(self, vocabulary: Vocabulary) -> None:
        self._inner.use(vocabulary)

    def drain(self) -> None:
        pass

    @property
    def pid(self) -> None:
        return None

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def stop(self, why: PlimsollError | None = None) -> None:
        self.die(why or EngineDeadError("the engine was stopped"))
        await asyncio.sleep(self._engines.behaviours[self.name].stop_seconds)
        self._engines.alive.discard(self)

    async def resize(self, kv_bytes: int) -> int:
        assert self._engines.shared, "a GPU's cache keeps its size"
        await asyncio.sleep(0.1)
        self.kv_bytes = max(kv_bytes, self._engines.behaviours[self.name].kv_held)
        self._engines.check()
        return self.kv_bytes

    def die(self, error: PlimsollError) -> None:
        """Die like a process, with its requests; its memory is free after `stop`."""
        if self.failure is None:
            self.failure = error
            self._dead.set()
            if self._inner is not None:
                self._inner.die()
                self._inner.failure = error


class FakeEngines:
    """A device of `capacity` bytes. `engine_of` makes the object that provides an engine's `info` and `generate`."""

    def __init__(
        self,
        capacity: int = 10,
        *,
        shared: bool = True,
        findings: tuple[str, ...] = (),
        engine_of: Callable[[ModelName, ModelSpec], Any] = lambda name, spec: None,
    ) -> None:
        self.capacity = capacity
        self.shared = shared
        self.findings = findings
        self.behaviours: dict[ModelName, Behaviour] = defaultdict(Behaviour)
        self.alive: set[FakeEngine] = set()
        self.images: set[FakeImage] = set()
        self.pressure = Pressure.NONE
        self.reserved = 0
        self.taken_by_others = 0
        self.look_errors: list[PlimsollError] = []
        self.sleepers = 0
        self.starting: dict[ModelName, int] = {}
        self.starts: list[tuple[ModelName, str]] = []
        self._engine_of = engine_of

    @property
    def used(self) -> int:
        """Bytes of the device that processes have or are about to take."""
        private = sum(engine.grant.weights + engine.grant.workspace + engine.kv_bytes for engine in self.alive)
        return private + sum(self.starting.values())

    def check(self) -> None:
        """Fail if memory is exceeded."""
        assert self.used <= self.capacity, "out of memory on the device"
        if not self.shared:
            held = sum(image.nbytes for image in self.images)
            assert held <= self.sleepers, "out of host memory"

    async def open(self, line: float, sleepers: int) -> Device:
        self.sleepers = sleepers
        kind = "cpu" if self.shared else "cuda"
        return Device(kind, "a device that is none", self.capacity, self.shared, self.shared, self.findings)

    def look(self) -> Look:
        if self.look_errors:
            raise self.look_errors.pop(0)
        return Look(self.capacity - self.used - self.taken_by_others, self.reserved, self.pressure)

    async def find(self, name: ModelName, spec: ModelSpec) -> Found:
        how = self.behaviours[name]
        if "find" in how.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(how.find_seconds)
        if how.find_errors:
            raise how.find_errors.pop(0)
        weights = (how.image if self.shared else 0) + how.private
        sizes = Sizes(how.image, weights or how.image, how.workspace, how.kv_minimum, how.kv_useful)
        return Found(sizes, ModelFiles(name.name, Path(spec.source), "safetensors", {}, ()))

    def image(self, name: ModelName, size: int) -> Image:
        image = FakeImage(size, self.images.discard)
        self.images.add(image)
        return image

    async def start(self, name: ModelName, spec: ModelSpec, found: Found, image: Image | None, grant: Grant) -> Started:
        how = self.behaviours[name]
        filled = image is not None and image.complete
        self.starts.append((name, "wake" if filled else "load"))
        assert name not in self.starting
        assert name not in {engine.name for engine in self.alive}, "two engines of one model"
        self.starting[name] = grant.total
        try:
            self.check()
            if "start" in how.hangs:
                await asyncio.Event().wait()
            await asyncio.sleep(how.wake_seconds + (0 if filled else how.load_seconds))
            if how.start_errors:
                raise how.start_errors.pop(0)
        finally:
            del self.starting[name]
        if image is not None:
            cast(FakeImage, image).complete = True
        engine = FakeEngine(self, name, grant, self._engine_of(name, spec))
        self.alive.add(engine)
        measured = Grant(grant.weights, grant.workspace + how.grows, grant.kv)
        return Started(engine, measured, 0 if image is None else image.nbytes)

    async def close(self) -> None:
        """Do nothing: the host has ended all engines."""
