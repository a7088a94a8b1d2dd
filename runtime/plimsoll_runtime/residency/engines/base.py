"""Protocols of engines, images and devices, as a host uses them, and the record of an awake model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.view import Pressure
from plimsoll_runtime.residency.sizes import Sizes
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.weights.files import ModelFiles


class Engine(Protocol):
    """A resident model's process. When it dies, every generator raises EngineDeadError and `wait_dead` returns."""

    @property
    def info(self) -> EngineInfo:
        """Sizes and names, known since the start."""

    @property
    def stats(self) -> EngineStats:
        """As of the last step."""

    @property
    def failure(self) -> PlimsollError | None:
        """Why it is dead, None while it lives."""

    @property
    def kv_bytes(self) -> int:
        """What its KV cache has now."""

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request as they come; closing the generator early aborts the request."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Let it compile constraints, before the first request that has one; told again, it does nothing."""

    async def wait_dead(self) -> None:
        """Return once it can serve nothing any more, for whatever reason."""

    async def stop(self, why: PlimsollError | None = None) -> None:
        """End it; returns when its process is gone, or cannot be ended. May be called again.

        Requests on it get `why`, or an EngineDeadError.
        """

    async def resize(self, kv_bytes: int) -> int:
        """Shrink or grow its KV cache; the bytes that it has then, more where sequences hold them."""


class Image(Protocol):
    """A model's weights in host memory, for as long as it is open."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes now."""

    @property
    def complete(self) -> bool:
        """Whether an engine has filled it to its end: only such a one can be woken from."""

    def close(self) -> None:
        """Give it up."""


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is "cpu" or "cuda"; `capacity` in bytes; `shared`: its memory is the host's.

    `elastic`: whether KV caches on it can shrink and grow. `findings`: what a person should hear of it.
    """

    kind: str
    name: str
    capacity: int
    shared: bool
    elastic: bool = True
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A model whose files are there: what it will take, as its headers say. `files` are for tokenizer and template."""

    sizes: Sizes
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Started:
    """A model that is awake, with what was measured of it: bytes of the device, and of its image (0: it has none)."""

    engine: Engine
    grant: Grant
    image: int


@dataclass(frozen=True, slots=True)
class Look:
    """The memory as it is: bytes that are really free, what the runtime itself takes, and the pressure."""

    free: int
    reserved: int
    pressure: Pressure = Pressure.NONE


class Engines(Protocol):
    """Runs engines. Calls for different models may overlap; one that is cancelled leaves nothing behind."""

    async def open(self, line: float, sleepers: int) -> Device:
        """Get ready; what device this is. `sleepers` bytes of host memory are not the device's; `line` is its share.

        Raises UsageError, and DeviceLostError where the device has failed.
        """

    def look(self) -> Look:
        """Measure the memory; never blocks for long. Raises DeviceLostError where the device is lost."""

    async def find(self, name: ModelName, spec: ModelSpec) -> Found:
        """Fetch what is not there, and read the headers. Raises SourceError, ModelError or UsageError."""

    def image(self, name: ModelName, size: int) -> Image:
        """An empty one of at most so many bytes. Raises MemoryLimitError."""

    async def start(self, name: ModelName, spec: ModelSpec, found: Found, image: Image | None, grant: Grant) -> Started:
        """An engine with this grant: from an image that is filled, or into one that is empty. Raises PlimsollError.

        When it raises, no process is left.
        """

    async def close(self) -> None:
        """End what is left, engines excepted."""


class Resident:
    """One engine's life with one model. `serial` grows with each engine of the host; `files` has the tokenizer's.

    `has_served`: a request has ended on it, and the engine lived.
    """

    def __init__(self, name: ModelName, spec: ModelSpec, files: ModelFiles, engine: Engine, serial: int) -> None:
        self.name = name
        self.spec = spec
        self.files = files
        self.engine = engine
        self.serial = serial
        self.active = 0
        self.has_served = False
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request is in flight."""
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        """It has ended, one way or another."""
        self.active -= 1
        self.has_served = self.has_served or self.engine.failure is None
        if self.active == 0:
            self._idle.set()

    async def drained(self) -> None:
        """Return once nothing is in flight, or its engine is dead: then nothing is worth waiting for."""
        waits = [asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(self.engine.wait_dead())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
