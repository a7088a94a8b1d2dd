"""A model that is awake: what a lease gives."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.residency.engines import Engine
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.spec import ModelSpec
from plimsoll_runtime.weights.files import ModelFiles


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
