"""Asks for the rows that have no answer yet, many at once, and keeps the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress

from plimsoll_runtime.batch.row import Answered, Row
from plimsoll_runtime.batch.store import Store
from plimsoll_runtime.batch.window import WIDE, Window, windows

MOST_AHEAD = 16 * WIDE.rows
"""How many rows may be answered beyond one that is not: each is remembered until that one has its answer."""

Answer = Callable[[Row], Awaitable[Answered]]


class Runner:
    """Answers the rows of one run. What `answer` raises ends it: a row that merely fails has an answer that says so.

    `at_once`: how many rows may be under way. `told` hears of each answer, and `passed` of each row that has one
    already.
    """

    def __init__(
        self,
        answer: Answer,
        store: Store,
        at_once: int,
        told: Callable[[Row, Answered], None] = lambda row, answered: None,
        passed: Callable[[Row], None] = lambda row: None,
        window: Window = WIDE,
        most_ahead: int = MOST_AHEAD,
    ) -> None:
        self._answer = answer
        self._store = store
        self._told = told
        self._passed = passed
        self._window = window
        self._most_ahead = most_ahead
        self._free = asyncio.Semaphore(at_once)
        self._kept = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._marking: asyncio.Task[None] | None = None
        self._meanwhile: list[Answered] = []
        self._flushing = False
        self._failure: BaseException | None = None

    async def run(self, rows: Iterable[Row]) -> None:
        """Until all of them are answered. Ended early, by an error or cancelled, it leaves nothing under way."""
        try:
            for row in windows(self._missing(rows), self._window):
                await self._room_for(row)
                task = asyncio.create_task(self._one(row))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            while self._tasks and self._failure is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            while self._marking is not None:  # its thread goes on, whoever waits for it
                await asyncio.wait({self._marking})
            with suppress(OSError):  # whoever goes on asks again for what cannot be kept
                self._store.flush()
        if self._failure is not None:
            raise self._failure

    def _missing(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.number in self._store.done:
                self._passed(row)
            else:
                yield row

    async def _room_for(self, row: Row) -> None:
        """Raises what has ended the run."""
        await self._free.acquire()
        while self._failure is None and self._tasks and row.number - self._store.done.upto > self._most_ahead:
            self._kept.clear()
            await self._kept.wait()
        if self._failure is not None:
            raise self._failure

    async def _one(self, row: Row) -> None:
        answered = await self._answer(row)
        if self._marking is None:
            self._keep(answered)
        else:
            self._meanwhile.append(answered)
        self._told(row, answered)

    def _keep(self, answered: Answered) -> None:
        self._store.take(answered)
        if self._marking is not None:
            return
        if self._store.due:
            self._marking = asyncio.create_task(self._mark())
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Once for all that a step of the engine has ended."""
        self._flushing = False
        if self._marking is None:
            self._store.flush()

    async def _mark(self) -> None:
        """Let a thread wait for the disk; nothing is added meanwhile."""
        try:
            await asyncio.to_thread(self._store.mark)
        except OSError as error:
            self._failure = self._failure or error
        self._marking = None
        waiting, self._meanwhile = self._meanwhile, []
        for answered in waiting:
            self._keep(answered)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
        self._free.release()
        self._kept.set()
