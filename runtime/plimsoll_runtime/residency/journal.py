"""What has happened on a host: a sequence that others can await, and the last decisions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.report import Decision

KEPT = 64


class Journal:
    """`sequence` grows with each change of a state, an error or a decision. `wall` gives seconds since the epoch."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.sequence = 0
        self.wall = wall
        self._decisions: deque[Decision] = deque(maxlen=KEPT)
        self._news = asyncio.Event()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The last ones, oldest first."""
        return tuple(self._decisions)

    def note(self) -> None:
        """Something has changed."""
        self.sequence += 1
        self._news.set()
        self._news = asyncio.Event()

    def decide(self, name: ModelName, action: str, why: str) -> None:
        """Something was done with a model."""
        self.note()
        self._decisions.append(
            Decision(
                sequence=self.sequence,
                time=self.wall(),
                namespace=name.namespace,
                name=name.name,
                action=action,
                why=why,
            )
        )

    async def beyond(self, after: int, seconds: float) -> None:
        """Return once the sequence is beyond `after`, or so many seconds have passed."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while self.sequence <= after:
                    await self._news.wait()
        except TimeoutError:
            return
