"""The endpoints /v1/files and /v1/batches, and the service behind them: storage, worker and routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from plimsoll_runtime.api.batches.file_store import BATCHES, DATA, FILES, FileStore
from plimsoll_runtime.api.batches.job import WorkerContext
from plimsoll_runtime.api.batches.limits import HEADER, Pace, read_terms, too_many_open
from plimsoll_runtime.api.batches.lines import ENDPOINTS
from plimsoll_runtime.api.batches.records import (
    CANCELLING,
    FINAL,
    INPUT,
    WINDOW_SECONDS,
    BatchAnswer,
    BatchList,
    BatchRequest,
    FileDeleted,
    FileList,
    KeptBatch,
    KeptFile,
)
from plimsoll_runtime.api.batches.upload import receive_file
from plimsoll_runtime.api.batches.worker import Worker
from plimsoll_runtime.api.http.body import parse, read_body
from plimsoll_runtime.api.http.errors import ApiError, json_response
from plimsoll_runtime.api.http.queries import page_of
from plimsoll_runtime.api.http.unknown_fields import ignored
from plimsoll_runtime.api.model_directory import ModelTable, Route
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.server.credentials import is_gateways
from plimsoll_runtime.api.telemetry.metrics_key import LABELS
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.options import BatchOptions

logger = logging.getLogger(__name__)

MOST_FILES, MOST_BATCHES, USUAL_BATCHES = 10_000, 100, 20
"""Most files and most batches in one page of a list, and the default number of batches in a page."""


class BatchService:
    """The endpoints, file store and worker of one server. Without `options` it stores no files and runs no batches.

    The handlers of the endpoints raise ApiError or ClientGoneError; without a file store, ApiError (501).
    """

    def __init__(self, options: BatchOptions | None = None) -> None:
        """Open the file store. Raises UsageError for an unusable folder."""
        self._options = options
        self._kept = None if options is None else FileStore(options.folder, options.most_bytes)
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self.lines = Counter(
            "plimsoll_batch_lines", "Lines of batches, by outcome.", (*LABELS, "outcome"), registry=None
        )

    @property
    def _file_store(self) -> FileStore:
        if self._kept is None:
            raise ApiError(
                "This server stores no files; start it with --files-dir DIR.",
                status=HTTPStatus.NOT_IMPLEMENTED,
                code="files_not_kept",
                headers={"x-should-retry": "false"},
            )
        return self._kept

    def start(self, models: ModelTable, live: Callable[[], int]) -> None:
        """Start the worker, which runs batches on `models`; do nothing without `options`. `live` returns the number of
        client requests in flight."""
        if self._options is None or self._kept is None:
            return
        pace = Pace(self._options.at_once, live)
        self._worker = Worker(self._kept, WorkerContext(models, pace, self._options.shared, self.lines))
        self._working = asyncio.create_task(self._worker.run())
        self._working.add_done_callback(_log_failure)

    async def stop(self) -> None:
        """Stop the worker. The next server that opens the file store resumes its batches."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})

    async def upload(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Store an uploaded file."""
        return json_response(await receive_file(request, self._file_store, record.owner))

    async def list_files(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Return a page of the owner's files; the query's `purpose` selects those with that purpose."""
        kept = await asyncio.to_thread(self._file_store.files, record.owner)
        purpose = request.query_params.get("purpose")
        told = [each.told for each in kept if purpose in (None, each.told.purpose)]
        page = page_of(told, request.query_params, MOST_FILES, MOST_FILES)
        return json_response(FileList(page.items, page.more, page.first_id, page.last_id))

    async def show_file(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Return a file's record."""
        name = request.path_params["file_id"]
        return json_response((await asyncio.to_thread(self._file_store.file, record.owner, name)).told)

    async def delete_file(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Delete a file."""
        name = request.path_params["file_id"]
        await asyncio.to_thread(self._file_store.drop_file, record.owner, name)
        return json_response(FileDeleted(name))

    async def file_content(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Return a file's content."""
        name = request.path_params["file_id"]
        kept = await asyncio.to_thread(self._file_store.file, record.owner, name)
        path = self._file_store.path(record.owner, FILES, name, DATA)
        return FileResponse(path, media_type="application/octet-stream", filename=kept.told.filename)

    async def create_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Create a batch from an uploaded file."""
        file_store = self._file_store
        body = parse(await read_body(request), BatchRequest)
        record.ignored = ignored(body)
        if body.endpoint not in ENDPOINTS:
            raise invalid("endpoint", f"it must be one of {', '.join(ENDPOINTS)}")
        file = (await asyncio.to_thread(_input_of, file_store, record.owner, body.input_file_id)).told
        if file.purpose != INPUT:
            raise invalid("input_file_id", f"the file's purpose is '{file.purpose}'; it must be '{INPUT}'")
        now = int(time.time())
        told = BatchAnswer(
            id=file_store.new_id(BATCHES),
            endpoint=body.endpoint,
            input_file_id=file.id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=body.metadata,
        )
        terms = read_terms(request.headers.get(HEADER)) if is_gateways(record.owner) else None
        await asyncio.to_thread(_keep_new, file_store, KeptBatch(told, record.owner, record.tenant, terms=terms))
        self._look()
        return json_response(told)

    async def list_batches(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """List the owner's batches."""
        file_store = self._file_store
        told = await asyncio.to_thread(lambda: [_shown(file_store, each) for each in file_store.batches(record.owner)])
        page = page_of(told, request.query_params, USUAL_BATCHES, MOST_BATCHES)
        return json_response(BatchList(page.items, page.more, page.first_id, page.last_id))

    async def show_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Return a batch."""
        kept = await self._batch(request, record)
        return json_response(await asyncio.to_thread(_shown, self._file_store, kept))

    async def cancel_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Ask the worker to end a batch, and return the batch, now `cancelling`. Raises ApiError (409) if it has
        already ended."""
        kept = await self._batch(request, record)
        if kept.told.status in FINAL:
            raise ApiError(
                f"The batch '{kept.told.id}' is {kept.told.status} and cannot be cancelled.",
                status=HTTPStatus.CONFLICT,
                code="batch_has_ended",
                headers={"x-should-retry": "false"},
            )
        await asyncio.to_thread(self._file_store.cancel, kept)
        self._look()
        return json_response(await asyncio.to_thread(_shown, self._file_store, kept))

    async def _batch(self, request: Request, record: RequestRecord) -> KeptBatch:
        return await asyncio.to_thread(self._file_store.batch, record.owner, request.path_params["batch_id"])

    def _look(self) -> None:
        if self._worker is not None:
            self._worker.look()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the batch worker has failed; batches stop until the server restarts", exc_info=error)


def _shown(file_store: FileStore, kept: KeptBatch) -> BatchAnswer:
    """Return a batch as clients see it: from the request to cancel it until its end, its status is `cancelling`."""
    told = kept.told
    if told.status not in FINAL and (at := file_store.cancelled_at(kept.owner, told.id)) is not None:
        return msgspec.structs.replace(told, status=CANCELLING, cancelling_at=at)
    return told


def _input_of(file_store: FileStore, owner: str, name: str) -> KeptFile:
    try:
        return file_store.file(owner, name)
    except ApiError as error:
        raise ApiError(error.message, status=error.status, param="input_file_id", code=error.code) from error


def _keep_new(file_store: FileStore, kept: KeptBatch) -> None:
    """Store a new batch. Raises ApiError (429) if its API key already has as many open batches as its limit."""
    terms = kept.terms
    with file_store.making(kept.owner):
        if terms is not None:
            others = (each.terms for each in file_store.batches(kept.owner) if each.told.status not in FINAL)
            if sum(other is not None and other.key == terms.key for other in others) >= terms.at_once:
                raise too_many_open(terms)
        file_store.keep_batch(kept)


def batch_routes(routes: BatchService) -> tuple[Route, ...]:
    """Return method, path and handler of each endpoint."""
    return (
        ("POST", "/v1/files", routes.upload),
        ("GET", "/v1/files", routes.list_files),
        ("GET", "/v1/files/{file_id}", routes.show_file),
        ("DELETE", "/v1/files/{file_id}", routes.delete_file),
        ("GET", "/v1/files/{file_id}/content", routes.file_content),
        ("POST", "/v1/batches", routes.create_batch),
        ("GET", "/v1/batches", routes.list_batches),
        ("GET", "/v1/batches/{batch_id}", routes.show_batch),
        ("POST", "/v1/batches/{batch_id}/cancel", routes.cancel_batch),
    )
