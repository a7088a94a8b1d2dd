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
    """The engine process of a resident model. When it dies, every generator raises EngineDeadError and `wait_dead`
    returns.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes and names of the loaded model, known since the start."""

    @property
    def stats(self) -> EngineStats:
        """Statistics of the last step."""

    @property
    def failure(self) -> PlimsollError | None:
        """The error that the engine died of; None while it lives."""

    @property
    def pid(self) -> int | None:
        """Its process; None if that is this one."""

    @property
    def kv_bytes(self) -> int:
        """Current bytes of the KV cache."""

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request as they arrive; closing the generator early aborts the request."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary for constraints, before the first request with one. Further calls do nothing."""

    def drain(self) -> None:
        """Keep what running requests need until `stop`."""

    async def wait_dead(self) -> None:
        """Return when the engine can serve no more requests, for whatever reason."""

    async def stop(self, why: PlimsollError | None = None) -> None:
        """End the engine; return when its process has ended or cannot be ended. May be called again.

        Running requests raise `why`, or an EngineDeadError.
        """

    async def resize(self, kv_bytes: int) -> int:
        """Resize the KV cache to `kv_bytes`; return its new size in bytes, which is larger if sequences still hold
        blocks beyond that.
        """


class Image(Protocol):
    """A model's weights in host memory, until it is closed."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""

    @property
    def complete(self) -> bool:
        """Whether an engine has filled it completely; only then can a model wake from it."""

    def close(self) -> None:
        """Free the image."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device. `kind` is "cpu" or "cuda"; `capacity` is in bytes; `shared`: its memory is the host memory (a CPU).

    `elastic`: whether KV caches on it can shrink and grow. `findings`: messages about it for the user.
    """

    kind: str
    name: str
    capacity: int
    shared: bool
    elastic: bool = True
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A model whose files are available, with its sizes by their headers. `files` has the tokenizer and chat
    template.
    """

    sizes: Sizes
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Started:
    """An awake model: its engine, its grant after a measurement, and the bytes of its image (0: none)."""

    engine: Engine
    grant: Grant
    image: int


@dataclass(frozen=True, slots=True)
class Look:
    """Measured memory of the device: free bytes, bytes that the runtime itself takes (`reserved`), and the pressure."""

    free: int
    reserved: int
    pressure: Pressure = Pressure.NONE


class Engines(Protocol):
    """Starts and measures engines. Calls for different models may overlap; a cancelled call leaves nothing behind."""

    async def open(self, line: float, sleepers: int) -> Device:
        """Prepare the device, and return it. `sleepers` bytes of host memory are reserved for images; `line` is the
        share of the device (up to 1) that may be granted.

        Raises UsageError, and DeviceLostError if the device has failed.
        """

    def look(self) -> Look:
        """Measure the memory; never blocks for long. Raises DeviceLostError if the device is lost."""

    async def find(self, name: ModelName, spec: ModelSpec) -> Found:
        """Fetch missing files, and read their headers. Raises SourceError, ModelError or UsageError."""

    def image(self, name: ModelName, size: int) -> Image:
        """Return an empty image of at most `size` bytes. Raises MemoryLimitError."""

    async def start(self, name: ModelName, spec: ModelSpec, found: Found, image: Image | None, grant: Grant) -> Started:
        """Start an engine with this grant, from a filled image or into an empty one. Raises PlimsollError.

        If it raises, no process is left.
        """

    async def close(self) -> None:
        """End every process except engines."""


class Resident:
    """One engine and its model. `serial` grows with each engine of the host; `files` has the tokenizer.

    `has_served`: a request has ended on the engine while it lived.
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
        """Count a request in flight."""
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        """Record the end of a request."""
        self.active -= 1
        self.has_served = self.has_served or self.engine.failure is None
        if self.active == 0:
            self._idle.set()

    async def drained(self) -> None:
        """Return when no request is in flight, or the engine is dead."""
        waits = [asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(self.engine.wait_dead())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
