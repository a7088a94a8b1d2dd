"""What the server needs of an engine: the process's client has it, and so have the tests' stand-ins."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.errors import PlimsollError


class Engine(Protocol):
    """An engine that runs somewhere else.

    When it dies, every generator raises EngineDeadError and `wait_dead` returns.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes and names, known since the start."""

    @property
    def stats(self) -> EngineStats:
        """As of the last step."""

    @property
    def failure(self) -> PlimsollError | None:
        """Why it is dead, None while it lives."""

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request as they come; closing the generator early aborts the request."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Let it compile constraints, before the first request that has one; told again, it does nothing."""

    async def wait_dead(self) -> None:
        """Return once the engine has died, for whatever reason."""

    async def stop(self) -> None:
        """End the engine; returns when its process is gone."""
