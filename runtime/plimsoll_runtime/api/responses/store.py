"""Stores and finds responses, in a thread of its own."""

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
from plimsoll_runtime.api.responses.shares import StoredResponse
from plimsoll_runtime.api.responses.sqlite_store import SqliteStore
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.options import ResponseBounds

logger = logging.getLogger(__name__)

MAX_TURNS = 1000
MAX_TURN_BYTES = 32 * 2**20
"""Most earlier turns of a conversation, and most bytes of them together, which is also the default limit of a request
body."""

ResultT = TypeVar("ResultT")


class ResponseStore:
    """Stores responses, and finds them for their owners."""

    def __init__(self, bounds: ResponseBounds, file: Path | None = None) -> None:
        """Open the store, in memory if there is no `file`. Raises UsageError if the file cannot be used."""
        self._backend = SqliteStore(file, bounds)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def put(self, kept: StoredResponse) -> bool:
        """Store a response, replacing one with its id; return whether it is stored."""
        try:
            there = await self._do(partial(self._backend.put, kept))
        except sqlite3.Error:
            logger.exception("response %s cannot be stored", kept.id)
            return False
        if not there:
            logger.warning("response %s is not stored: its %d bytes do not fit", kept.id, kept.size)
        return there

    async def get(self, response: str, owner: str) -> StoredResponse | None:
        """Return the response with that id, None if it does not exist, has expired or belongs to another owner."""
        return await self._do(partial(self._backend.get, response, owner))

    async def delete(self, response: str, owner: str) -> bool:
        """Delete a response of the owner; return whether it existed."""
        return await self._do(partial(self._backend.delete, response, owner))

    async def turns(self, last: str, owner: str) -> list[StoredResponse]:
        """Return the stored responses of a conversation, the oldest first, up to the one with the id `last`, and mark
        them as used. Raises ApiError (400) if one is missing, or if they exceed MAX_TURNS or MAX_TURN_BYTES."""
        return await self._do(partial(self._turns, last, owner))

    async def several(self, responses: Sequence[str], owner: str) -> dict[str, StoredResponse]:
        """Return the owner's responses among these, by id. Raises ApiError (400) if they are too large."""
        if not responses:  # most requests have none and need not wait for the thread
            return {}
        return await self._do(partial(self._several, responses, owner))

    async def close(self) -> None:
        """Close the store after its present work."""
        await self._do(self._backend.close)
        self._thread.shutdown()

    async def _do(self, work: Callable[[], ResultT]) -> ResultT:
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
                raise invalid(
                    "input", f"the responses that it refers to have more than {MAX_TURN_BYTES} bytes; send the items"
                )
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
        f"The conversation up to '{response}' has more than {MAX_TURNS} turns, or {MAX_TURN_BYTES} bytes; start a new "
        "one with its important parts in 'input'.",
        param="previous_response_id",
        code="conversation_too_long",
    )
