"""Finds the open batches of a file store and runs a few of them at a time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from plimsoll_runtime.api.batches.file_store import FileStore
from plimsoll_runtime.api.batches.job import Work, WorkerContext
from plimsoll_runtime.api.batches.records import FINAL, BatchFault, KeptBatch
from plimsoll_runtime.batch.store import BusyError, Store
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.threads import in_thread_to_its_end

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Seconds between two looks into the file store, for batches that other servers created or left."""
SWEEP_SECONDS = 600.0
"""Seconds between two deletions of expired files and batches."""
AT_ONCE = 4
"""Batches that run at the same time, so that a long one does not delay a short one."""


class Worker:
    """The batch worker of one server. If several servers share a file store, the server that holds the lock of a
    batch's work runs it."""

    def __init__(self, file_store: FileStore, context: WorkerContext, now: Callable[[], float] = time.time) -> None:
        self._file_store = file_store
        self._context = context
        self._now = now
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        self._swept = 0.0
        self._changed = asyncio.Event()
        self._wakes: set[asyncio.Event] = set()

    def look(self) -> None:
        """Wake the worker, and the batches that it runs, to look for new and cancelled batches now."""
        self._changed.set()
        for wake in self._wakes:
            wake.set()

    async def run(self) -> None:
        """Run batches until cancelled. Unfinished batches are resumed by the next worker."""
        try:
            while True:
                self._changed.clear()
                try:
                    await self._take_up()
                except OSError:
                    logger.exception("the file store cannot be read; trying again")
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._changed.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _take_up(self) -> None:
        if time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            await asyncio.to_thread(self._file_store.sweep)
        for kept in await asyncio.to_thread(self._file_store.unfinished):
            if len(self._tasks) >= AT_ONCE:
                return
            if kept.told.id not in self._tasks and await self._is_for_us(kept):
                task = asyncio.create_task(self._work(kept))
                self._tasks[kept.told.id] = task
                task.add_done_callback(partial(self._ended, kept.told.id))

    async def _is_for_us(self, kept: KeptBatch) -> bool:
        """Return whether this server can take up a batch: it has the batch's model, or shares the file store with no
        other server. Every server can check a new batch, and end a cancelled or expired one."""
        told = kept.told
        if told.model is None or not self._context.shared or told.model in self._names():
            return True
        if self._now() >= told.expires_at:
            return True
        return await asyncio.to_thread(self._file_store.cancelled_at, kept.owner, told.id) is not None

    def _names(self) -> set[str]:
        return {name for view in self._context.models.views() for name in view.names}

    def _ended(self, name: str, task: asyncio.Task[bool]) -> None:
        del self._tasks[name]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.error("batch %s stopped with an error and will be resumed", name, exc_info=error)
        elif task.result():
            self._changed.set()  # a place is free for another batch

    async def _work(self, kept: KeptBatch) -> bool:
        """Run a batch; return False if another server holds it or it has ended."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._store, kept))
        try:
            store = await asyncio.shield(opening)
        except BusyError:
            return False
        except UsageError as error:
            kept.fail(
                [BatchFault("work_lost", f"The stored results of the batch cannot be used: {error}.")], self._now()
            )
            await in_thread_to_its_end(partial(self._close_without_work, kept))
            return True
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
        with store:
            # Read it again: its last worker may have changed it.
            kept = await asyncio.to_thread(self._file_store.batch, kept.owner, kept.told.id)
            if kept.told.status in FINAL:
                store.remove()
                return False
            work = Work(self._file_store, self._context, self._now, kept, store, self._names())
            self._wakes.add(work.wake)
            try:
                await work.run()
            finally:
                self._wakes.remove(work.wake)
        return True

    def _close_without_work(self, kept: KeptBatch) -> None:
        """Write the record of a batch that has failed, and delete its damaged work folder."""
        self._file_store.keep_batch(kept)
        shutil.rmtree(self._file_store.places(kept.owner, kept.told.id).work, ignore_errors=True)

    def _store(self, kept: KeptBatch) -> Store:
        places = self._file_store.places(kept.owner, kept.told.id)
        job = {"batch": kept.told.id, "input": kept.told.input_file_id}
        return Store(places, job, ordered=False, created=kept.told.created_at)


def _close(opening: asyncio.Future[Store]) -> None:
    """Close a store that was opened after the cancellation."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
