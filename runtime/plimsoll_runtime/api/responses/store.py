"""Keeps responses in a store and finds them again. A store in a file runs in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses.errors import previous_not_found
from plimsoll_runtime.api.responses.memory_store import MemoryStore, StoreBackend, StoredResponse
from plimsoll_runtime.api.responses.sqlite_store import SqliteStore
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.options import ResponseBounds

logger = logging.getLogger(__name__)

MAX_TURNS = 1000
MAX_TURN_BYTES = 32 * 2**20
"""The most turns that a conversation may go on from, and their most bytes in all: what a request may usually have."""

ResultT = TypeVar("ResultT")


class ResponseStore:
    """Keeps responses, and finds them for whom they belong to."""

    def __init__(self, bounds: ResponseBounds, file: Path | None = None) -> None:
        """In memory, unless there is a `file`. Raises UsageError where that cannot be used."""
        self._backend: StoreBackend = MemoryStore(bounds) if file is None else SqliteStore(file, bounds)
        self._thread = None if file is None else ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def put(self, kept: StoredResponse) -> bool:
        """Keep it, in place of what has its id; whether it is kept."""
        try:
            there = await self._do(partial(self._backend.put, kept))
        except sqlite3.Error:
            logger.exception("response %s cannot be kept", kept.id)
            return False
        if not there:
            logger.warning("response %s is not kept: there is no room for its %d bytes", kept.id, kept.size)
        return there

    async def get(self, response: str, owner: str) -> StoredResponse | None:
        """The one of that id, if it is the owner's."""
        return await self._do(partial(self._backend.get, response, owner))

    async def delete(self, response: str, owner: str) -> bool:
        """Forget it, if it is the owner's; whether it was there."""
        return await self._do(partial(self._backend.delete, response, owner))

    async def turns(self, last: str, owner: str) -> list[StoredResponse]:
        """The turns of a conversation up to the `last`, which is used by that. Raises ApiError (400) where one is not
        there, or where they are too many.
        """
        return await self._do(partial(self._turns, last, owner))

    async def several(self, responses: Sequence[str], owner: str) -> dict[str, StoredResponse]:
        """Those of the owner that are there, by their ids. Raises ApiError (400) where they are too much."""
        if not responses:  # as for most requests, which need not wait for the thread
            return {}
        return await self._do(partial(self._several, responses, owner))

    async def close(self) -> None:
        """Nothing is asked of it any more. Waits for what it does."""
        await self._do(self._backend.close)
        if self._thread is not None:
            self._thread.shutdown()

    async def _do(self, work: Callable[[], ResultT]) -> ResultT:
        if self._thread is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _several(self, responses: Sequence[str], owner: str) -> dict[str, StoredResponse]:
        found: dict[str, StoredResponse] = {}
        size = 0
        for response in responses:
            kept = self._backend.get(response, owner)
            if kept is not None:
                found[response] = kept
                size += kept.size
            if size > MAX_TURN_BYTES:
                raise invalid("input", f"what it refers to has more than {MAX_TURN_BYTES} bytes; send the items")
        return found

    def _turns(self, last: str, owner: str) -> list[StoredResponse]:
        turns: list[StoredResponse] = []
        size, wanted = 0, last
        while True:
            kept = self._backend.get(wanted, owner)
            if kept is None:
                raise previous_not_found(wanted)
            turns.append(kept)
            size += kept.size
            if len(turns) > MAX_TURNS or size > MAX_TURN_BYTES:
                raise _too_long(last)
            if kept.previous is None:
                break
            wanted = kept.previous
        turns.reverse()
        self._backend.use([kept.id for kept in turns])
        return turns


def _too_long(response: str) -> ApiError:
    return ApiError(
        f"The conversation up to '{response}' has more than {MAX_TURNS} turns, or {MAX_TURN_BYTES} bytes; begin anew, "
        "with what counts of it in 'input'.",
        param="previous_response_id",
        code="conversation_too_long",
    )
