"""Runs the rows that have no result yet, many at the same time, in an order that shares prefixes and starts long
rows first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from plimsoll_runtime.batch.job import Answered, Row
from plimsoll_runtime.batch.store import Store

_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')
_HEAD = 1024
SHARED = 160
"""Rows form a group if this many first bytes of their prompts' JSON are equal. About 60 of them are JSON that all rows
have; a KV block holds 16 tokens, usually about 64 bytes.
"""


class Window(NamedTuple):
    """Limits of the rows that are sorted together: they end at whichever limit is reached first."""

    rows: int
    bytes: int


WIDE = Window(4096, 16 * 2**20)
FIRST = 16
"""Factor by which the first window is smaller."""
READ_AHEAD = 2
"""Rows of the next window that are read for each row that starts."""


def windows(rows: Iterable[Row], most: Window = WIDE) -> Iterator[Row]:
    """Yield all rows, sorted within windows.

    Rows with the same prefix are neighbours, so that they hit the prefix cache, and the longest start first, so that
    the run does not end with them. The store restores the order of results. Rows are read while others run, so
    nothing waits for a full window: the first one is small, and each has at most twice the rows of the one before
    it.
    """
    source = iter(rows)
    first = Window(-(-most.rows // FIRST), -(-most.bytes // FIRST))
    ahead = _Growing(source, first)
    ahead.read(first.rows)
    while ahead.rows:
        window, ahead = arranged(ahead.rows), _Growing(source, most)
        for row in window:
            yield row
            ahead.read(READ_AHEAD)


class _Growing:
    """A window that is being filled."""

    def __init__(self, source: Iterator[Row], most: Window) -> None:
        self.rows: list[Row] = []
        self._source = source
        self._most = most
        self._size = 0

    def read(self, count: int) -> None:
        """Read up to `count` more rows, within the window's limits."""
        for _ in range(count):
            if len(self.rows) >= self._most.rows or self._size >= self._most.bytes:
                return
            if (row := next(self._source, None)) is None:
                return
            self.rows.append(row)
            self._size += len(row.data)


def arranged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one window in the order in which they start."""
    ordered = sorted(((_head(row.data), row) for row in rows), key=lambda pair: pair[0])
    heads = [head for head, _ in ordered]
    company = iter(_companies(heads))
    groups = [[row for _, row in group] for _, group in groupby(ordered, lambda _: next(company))]
    for group in groups:
        group.sort(key=_longest_first)
    groups.sort(key=lambda group: _longest_first(group[0]))
    return [row for group in groups for row in group]


def _companies(heads: Sequence[bytes]) -> Iterator[int]:
    """Yield the group number of each of the sorted heads: neighbours are in one group if their first SHARED bytes are
    equal.
    """
    group = 0
    for index, head in enumerate(heads):
        if index and (len(head) < SHARED or heads[index - 1][:SHARED] != head[:SHARED]):
            group += 1
        yield group


def _head(data: bytes) -> bytes:
    """Return the start of the row's prompt, as JSON."""
    at = min((found for marker in _PROMPTS if (found := data.find(marker)) >= 0), default=0)
    return data[at : at + _HEAD]


def _longest_first(row: Row) -> tuple[int, int]:
    return -len(row.data), row.index


MOST_AHEAD = 16 * WIDE.rows
"""Most rows that may finish beyond an unfinished one; each is remembered until that row is done."""

Answer = Callable[[Row], Awaitable[Answered]]


class Runner:
    """Runs the rows of one job. An exception of `answer` ends the run; a row that fails has a result with `failed` set.

    At most `at_once` rows run at the same time. `told` is called for each new result, `passed` for each row that
    already has one.
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
        """Run until every row has a result. If an error or a cancellation ends it early, all its tasks are
        cancelled."""
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
            while self._marking is not None:  # a thread's work cannot be cancelled
                await asyncio.wait({self._marking})
            with suppress(OSError):  # a later run repeats results that cannot be written
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
        """Wait until a row may start. Raises the error that ended the run."""
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
        """Flush once for all results of an engine step."""
        self._flushing = False
        if self._marking is None:
            self._store.flush()

    async def _mark(self) -> None:
        """Write a mark in a thread; results that arrive in the meantime are added afterwards."""
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
