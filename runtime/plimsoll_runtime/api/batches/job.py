"""Runs one batch from its input file to its output and error files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prometheus_client import Counter

from plimsoll_runtime.api.batches.executor import LineExecutor
from plimsoll_runtime.api.batches.file_store import DATA, FILES, FileStore
from plimsoll_runtime.api.batches.limits import Allowance, Pace, expected_tokens
from plimsoll_runtime.api.batches.lines import ENDPOINTS, LineFault, Terms, check_lines, unasked_line
from plimsoll_runtime.api.batches.records import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    OUTPUT,
    VALIDATING,
    BatchFault,
    BatchFaults,
    BatchUsage,
    FileAnswer,
    KeptBatch,
    KeptFile,
)
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.model_directory import GENERATES, ModelTable, key_of
from plimsoll_runtime.batch.inputs import InputFile
from plimsoll_runtime.batch.job import ALL, Answered, Row
from plimsoll_runtime.batch.output_paths import JSONL, FileKind
from plimsoll_runtime.batch.reader import read_rows
from plimsoll_runtime.batch.run import Runner, Window
from plimsoll_runtime.batch.store import ANSWERS, ERRORS, Store
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.threads import in_thread_to_its_end

KEEP_SECONDS = 2.0
"""Seconds between two writes of a batch's counts."""
MOST_TRIES = 5
"""Most starts of a batch without one more result: a line that kills the engine would otherwise end one server after
another."""
WINDOW = Window(512, 2 * 2**20)
"""Most rows and bytes that are sorted at a time (see `windows`). Sorting blocks the event loop for some
milliseconds."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Data of the server that all its batches use. `pace` limits the lines that run at the same time. `shared` says
    that other servers use the same file store, so one of them may have a model that this server lacks. `lines` counts
    lines by model and outcome."""

    models: ModelTable
    pace: Pace
    shared: bool
    lines: Counter


class Work:
    """Runs one batch. `store` has the results of its lines; the caller has opened it, and with it has locked the batch.
    `names` are the served names of this server."""

    def __init__(
        self,
        file_store: FileStore,
        context: WorkerContext,
        now: Callable[[], float],
        kept: KeptBatch,
        store: Store,
        names: set[str],
    ) -> None:
        self._file_store = file_store
        self._context = context
        self._now = now
        self._kept = kept
        self._told = kept.told
        self._store = store
        self._names = names
        self._last = b""
        self.wake = asyncio.Event()
        told = kept.told
        self._terms = Terms(told.id, told.created_at, told.endpoint, strict=True, tenant=kept.tenant)

    async def run(self) -> None:
        """Run the batch from its present state to its end. Return early if only another server has its model."""
        if self._store.end is None:
            if self._told.status == VALIDATING and await self._ends_early() is None and not await self._validate():
                return
            if not await asyncio.to_thread(self._input.exists):
                await self._fail([BatchFault("input_file_missing", "The input file was deleted.", "input_file_id")])
                return
            if await self._may_try():
                await self._answer()
            else:
                await self._close_as(FAILED)
        await self._finalize()

    async def _validate(self) -> bool:
        """Check all lines, and return whether they can run here. If not, the batch has failed or is another
        server's."""
        told = self._told
        try:
            checked = await asyncio.to_thread(lambda: check_lines(self._rows(), self._terms))
            faults = checked.faults
        except (ApiError, UsageError, OSError) as error:
            faults = [BatchFault("invalid_input_file", f"The input file cannot be read: {error}.", "input_file_id")]
        else:
            told.request_counts.total, told.model = checked.lines, checked.model
        if not faults and told.model not in self._names and not self._context.shared:
            message = f"The model '{told.model}' does not exist; this server has {', '.join(sorted(self._names))}."
            faults = [BatchFault("model_not_found", message, "body.model", 1)]
        terms = self._kept.terms
        if not faults and terms is not None and not terms.may_use(told.model or ""):
            message = f"The API key '{terms.key}' may not use the model '{told.model}'."
            faults = [BatchFault("model_not_allowed", message, "body.model", 1)]
        if faults:
            await self._fail(faults)
            return False
        ours = told.model in self._names
        if ours:
            told.status, told.in_progress_at = IN_PROGRESS, int(self._now())
        await self._keep()
        return ours

    async def _fail(self, faults: list[BatchFault]) -> None:
        self._kept.fail(faults, self._now())
        await self._keep()
        self._store.remove()

    async def _answer(self) -> None:
        """Run the remaining lines until all are done, or the batch is cancelled or expires; then set it to
        `finalizing`."""
        answering = LineExecutor(self._context.models, self._terms, alone=False)
        terms, generates = self._kept.terms, ENDPOINTS[self._told.endpoint].tasks == GENERATES
        allowance = Allowance(terms) if terms is not None and terms.is_limited else None

        async def in_turn(row: Row) -> Answered:
            took = None
            if allowance is not None:
                tokens = expected_tokens(row.data, generates=generates)
                if (why := allowance.refusal(tokens)) is not None:
                    fault = LineFault("rate_limit_exceeded", why)
                    return Answered(row.number, unasked_line(row, self._terms, fault), failed=True)
                took = await allowance.take(tokens)
            async with self._context.pace.turn():
                answered = await answering(row)
            if took is not None:
                took(answered.prompt_tokens + answered.completion_tokens)
            key = key_of(self._context.models, self._told.model or "")
            self._context.lines.labels(*key, "failed" if answered.failed else "answered").inc()
            return answered

        runner = Runner(in_turn, self._store, self._context.pace.most, window=WINDOW)
        early = await self._ends_early()
        running = asyncio.create_task(runner.run(self._rows()))
        try:
            while not running.done() and early is None:
                await self._wait(running)
                self._count()
                await self._keep()
                early = await self._ends_early()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
        if early == EXPIRED:
            await in_thread_to_its_end(self._tell_expired)
        await self._close_as(COMPLETED if early is None or not running.cancelled() else early)

    async def _may_try(self) -> bool:
        """Count another start. Return False if too many starts gave no new result."""
        kept, rows = self._kept, self._store.tally.rows
        if rows > kept.rows:
            kept.tries, kept.rows = 0, rows
        kept.tries += 1
        if kept.tries > MOST_TRIES:
            message = (
                f"The batch was started {MOST_TRIES} times without a new result. One of its unfinished lines may crash "
                "the engine; remove it and create a new batch."
            )
            kept.told.errors = BatchFaults([BatchFault("no_progress", message)])
            return False
        await self._keep()
        return True

    async def _close_as(self, status: str) -> None:
        """Set the batch to `finalizing`, and record the status with which `_finalize` will end it."""
        self._kept.ends_as = status
        self._told.status, self._told.finalizing_at = FINALIZING, int(self._now())
        self._count()
        await self._keep()
        await in_thread_to_its_end(self._store.finish)

    async def _wait(self, running: asyncio.Task[None]) -> None:
        """Wait until `running` is done, `wake` is set, or KEEP_SECONDS have passed."""
        woken = asyncio.create_task(self.wake.wait())
        try:
            await asyncio.wait({running, woken}, timeout=KEEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            self.wake.clear()

    async def _ends_early(self) -> str | None:
        """Return the status with which the batch ends early; None if it continues."""
        if await self._cancelled_at() is not None:
            return CANCELLED
        return EXPIRED if self._now() >= self._told.expires_at else None

    async def _cancelled_at(self) -> int | None:
        return await asyncio.to_thread(self._file_store.cancelled_at, self._kept.owner, self._told.id)

    def _tell_expired(self) -> None:
        fault = LineFault("batch_expired", "The batch expired before this line ran.")
        for row in self._rows():
            if row.number not in self._store.done:
                self._store.take(Answered(row.number, unasked_line(row, self._terms, fault), failed=True))

    async def _finalize(self) -> None:
        """Publish the output and error files, and set the final status. Can be repeated after a crash."""
        told, now = self._told, int(self._now())
        self._count()
        told.output_file_id = await asyncio.to_thread(self._publish, ANSWERS, "output")
        told.error_file_id = await asyncio.to_thread(self._publish, ERRORS, "errors")
        told.status = self._kept.ends_as or COMPLETED
        if told.status == COMPLETED:
            told.completed_at = now
        elif told.status == FAILED:
            told.failed_at = now
        elif told.status == EXPIRED:
            told.expired_at = now
        else:
            told.cancelling_at = await self._cancelled_at() or now
            told.cancelled_at = now
        await self._keep()
        self._store.remove()

    def _publish(self, part: str, what: str) -> str | None:
        """Make the file `part` of the work folder a file of the owner, and return its id; None if it is empty or
        missing. `what` is the end of the id: "output" or "errors"."""
        owner, name = self._kept.owner, self._file_store.output_id(self._told.id, what)
        data = self._file_store.places(owner, self._told.id).work / part
        placed = self._file_store.path(owner, FILES, name, DATA)
        if data.exists() and data.stat().st_size == 0:
            return None
        if data.exists():
            data.replace(placed)
        if not placed.exists():
            return None
        told = FileAnswer(name, placed.stat().st_size, int(self._now()), f"{self._told.id}_{what}.jsonl", OUTPUT)
        self._file_store.keep_record(owner, KeptFile(told))
        return name

    @property
    def _input(self) -> Path:
        return self._file_store.path(self._kept.owner, FILES, self._told.input_file_id, DATA)

    def _rows(self) -> Iterator[Row]:
        """Yield the rows of the input. Raises OSError if it was deleted."""
        status = self._input.stat()
        kind = FileKind(JSONL, "", self._told.input_file_id)
        return read_rows([InputFile(self._input, kind, status.st_size, status.st_mtime_ns)], ALL)

    def _count(self) -> None:
        tally, counts = self._store.tally, self._told.request_counts
        counts.completed, counts.failed = tally.rows - tally.failed, tally.failed
        self._told.usage = BatchUsage.of(tally)

    async def _keep(self) -> None:
        """Write the batch's record if it has changed."""
        data = msgspec.json.encode(self._kept)
        if data != self._last:
            self._last = data
            await asyncio.to_thread(self._file_store.keep_batch, self._kept)
