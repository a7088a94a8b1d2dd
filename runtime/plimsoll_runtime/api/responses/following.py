"""The events of a stream that clients may follow from any event on: as they come, and packed once all have come."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence

import msgspec

from plimsoll_runtime.api.schemas.response_events import Numbered, ResponseEvent

_EVENTS = msgspec.json.Decoder(list[ResponseEvent])
_LEVEL = 1
"""Of the packing: events repeat themselves so much that more effort would hardly show."""


class Log:
    """The events so far, in the order of their numbers."""

    def __init__(self) -> None:
        self.events: list[Numbered] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, event: Numbered) -> None:
        """One more; its number is set."""
        event.sequence_number = len(self.events)
        self.events.append(event)
        self._tell()

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True
        self._tell()

    async def after(self, number: int) -> AsyncGenerator[Numbered, None]:
        """What has a higher number, as it comes, to the end."""
        at = number + 1
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self._ended:
                return
            await self._news.wait()

    def _tell(self) -> None:
        """Wake whoever waits now."""
        self._news.set()
        self._news = asyncio.Event()


def pack(events: Sequence[Numbered]) -> bytes:
    """Events as the shelf keeps them."""
    return zlib.compress(msgspec.json.encode(events), _LEVEL)


def unpack(data: bytes) -> list[ResponseEvent]:
    """Events from the shelf."""
    return _EVENTS.decode(zlib.decompress(data))
