"""Runs the lines of a batch with the code of the HTTP endpoints, so checks and results are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import msgspec

from plimsoll_runtime.api.batches.lines import Line, Terms, answer_line, custom_id_of, read_line, request_id_of
from plimsoll_runtime.api.endpoint import Ask, Job
from plimsoll_runtime.api.http.concurrency import offload
from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError
from plimsoll_runtime.api.model_directory import ModelTable
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.batch.job import Answered, Row
from plimsoll_runtime.engine.protocol.sampling_params import PRIORITY_LIMIT
from plimsoll_runtime.errors import EngineDeadError

ENGINE_DIED = "engine_died"


class LineExecutor:
    """Runs the rows of one batch. `alone` says that nothing else uses the event loop, so that nothing has to run in
    a thread."""

    def __init__(
        self,
        models: ModelTable,
        terms: Terms,
        *,
        alone: bool,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._models = models
        self._terms = terms
        self._alone = alone
        self._pause = pause

    async def __call__(self, row: Row) -> Answered:
        """Return the output line of a row, with its result or its error. Raises EngineDeadError if the engine died."""
        size = 0 if self._alone else len(row.data)
        record = RequestRecord(request_id_of(row, self._terms), created=self._terms.created, tenant=self._terms.tenant)
        custom_id = None
        try:
            line = await offload(size, partial(read_line, row, self._terms))
            custom_id = line.custom_id
            body = await self._asked(line, size, record)
            status: int = HTTPStatus.OK
        except ApiError as error:
            if error.code == ENGINE_DIED:
                raise EngineDeadError(error.message) from error
            status, body = error.status, error.body
        told = answer_line(row, custom_id or custom_id_of(row), self._terms, status, body, record.ignored)
        return Answered(
            row.number,
            told,
            status != HTTPStatus.OK,
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
        )

    async def _asked(self, line: Line, size: int, record: RequestRecord) -> msgspec.Struct:
        """Run a line and return the response body. After a 503, try again every RETRY_AFTER seconds, without end.
        Raises ApiError."""
        prepare = partial(self._prepared, line, record)
        ask = Ask(self._models, line.body.model, size, prepare, record, line.endpoint.tasks)
        while True:
            try:
                return await ask.whole()
            except ApiError as error:
                if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                await self._pause(RETRY_AFTER)

    def _prepared(self, line: Line, record: RequestRecord, model: ServedModel) -> Job:
        """Check a line, and return it ready to run. If the policy uses priorities and live requests share the engine
        (not `alone`), a line without a priority gets the lowest one, PRIORITY_LIMIT."""
        body = line.body
        if not self._alone and model.engine.info.policy == "priority" and getattr(body, "priority", 0) is None:
            body = body.model_copy(update={"priority": PRIORITY_LIMIT})
        return line.endpoint.prepared(body, model, record)
