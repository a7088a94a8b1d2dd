"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from plimsoll_runtime.api.batches.line import ENDPOINTS
from plimsoll_runtime.api.batches.records import (
    CANCELLING,
    FINAL,
    INPUT,
    WINDOW_SECONDS,
    BatchAnswer,
    BatchList,
    BatchRequest,
    FileAnswer,
    FileDeleted,
    FileList,
    KeptBatch,
    KeptFile,
)
from plimsoll_runtime.api.batches.upload import receive_file
from plimsoll_runtime.api.batches.vault import BATCHES, DATA, FILES, Vault
from plimsoll_runtime.api.batches.worker import Worker
from plimsoll_runtime.api.http.body import parse, read_body
from plimsoll_runtime.api.http.errors import ApiError, json_response
from plimsoll_runtime.api.http.ignored import ignored
from plimsoll_runtime.api.http.queries import choice, whole_number
from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.route import Route
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.table import ModelTable

MOST_FILES, MOST_BATCHES, USUAL_BATCHES = 10_000, 100, 20
"""How many entries a list has at most, and how many batches where its request does not say."""

ToldT = TypeVar("ToldT", FileAnswer, BatchAnswer)


class BatchRoutes:
    """The endpoints: each answers a request, or raises ApiError or ClientGoneError. Without a vault all answer 501."""

    def __init__(self, vault: Vault | None = None, worker: Callable[[], Worker | None] = lambda: None) -> None:
        self._kept = vault
        self._worker = worker

    @property
    def _vault(self) -> Vault:
        if self._kept is None:
            raise ApiError(
                "This server keeps no files: start it with --files-dir, a folder for them.",
                status=HTTPStatus.NOT_IMPLEMENTED,
                code="files_not_kept",
                headers={"x-should-retry": "false"},
            )
        return self._kept

    async def upload(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Take a file."""
        return json_response(await receive_file(request, self._vault, record.owner))

    async def list_files(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """The owner's files."""
        query = _Query(request, MOST_FILES, MOST_FILES)
        kept = await asyncio.to_thread(self._vault.files, record.owner)
        purpose = request.query_params.get("purpose")
        told = [each.told for each in kept if purpose in (None, each.told.purpose)]
        return json_response(FileList(*query.page(told)))

    async def show_file(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """One of them."""
        name = request.path_params["file_id"]
        return json_response((await asyncio.to_thread(self._vault.file, record.owner, name)).told)

    async def delete_file(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Delete one of them."""
        name = request.path_params["file_id"]
        await asyncio.to_thread(self._vault.drop_file, record.owner, name)
        return json_response(FileDeleted(name))

    async def file_content(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """What is in one of them."""
        name = request.path_params["file_id"]
        kept = await asyncio.to_thread(self._vault.file, record.owner, name)
        path = self._vault.path(record.owner, FILES, name, DATA)
        return FileResponse(path, media_type="application/octet-stream", filename=kept.told.filename)

    async def create_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """Make a batch of a file."""
        vault = self._vault
        body = parse(await read_body(request), BatchRequest)
        record.ignored = ignored(body)
        if body.endpoint not in ENDPOINTS:
            raise invalid("endpoint", f"it must be one of {', '.join(ENDPOINTS)}")
        file = (await asyncio.to_thread(_input_of, vault, record.owner, body.input_file_id)).told
        if file.purpose != INPUT:
            raise invalid("input_file_id", f"the file's purpose is '{file.purpose}' and must be '{INPUT}'")
        now = int(time.time())
        told = BatchAnswer(
            id=vault.new_id(BATCHES),
            endpoint=body.endpoint,
            input_file_id=file.id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=body.metadata,
        )
        await asyncio.to_thread(vault.keep_batch, KeptBatch(told, record.owner, record.tenant))
        self._look()
        return json_response(told)

    async def list_batches(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """The owner's batches."""
        query, vault = _Query(request, USUAL_BATCHES, MOST_BATCHES), self._vault
        told = await asyncio.to_thread(lambda: [_shown(vault, each) for each in vault.batches(record.owner)])
        return json_response(BatchList(*query.page(told)))

    async def show_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """One of them."""
        kept = await self._batch(request, record)
        return json_response(await asyncio.to_thread(_shown, self._vault, kept))

    async def cancel_batch(self, request: Request, _models: ModelTable, record: RequestRecord) -> Response:
        """End one of them early."""
        kept = await self._batch(request, record)
        if kept.told.status in FINAL:
            raise ApiError(
                f"The batch '{kept.told.id}' is {kept.told.status} and cannot be cancelled.",
                status=HTTPStatus.CONFLICT,
                code="batch_has_ended",
                headers={"x-should-retry": "false"},
            )
        await asyncio.to_thread(self._vault.cancel, kept)
        self._look()
        return json_response(await asyncio.to_thread(_shown, self._vault, kept))

    async def _batch(self, request: Request, record: RequestRecord) -> KeptBatch:
        return await asyncio.to_thread(self._vault.batch, record.owner, request.path_params["batch_id"])

    def _look(self) -> None:
        if (worker := self._worker()) is not None:
            worker.look()


class _Query:
    """Which part of a list is asked for. Raises ApiError."""

    def __init__(self, request: Request, usual: int, most: int) -> None:
        query = request.query_params
        self._limit = whole_number(query, "limit", 1, most) or usual
        self._after, self._ascending = query.get("after"), choice(query, "order", ("asc", "desc")) == "asc"

    def page(self, told: Sequence[ToldT]) -> tuple[list[ToldT], bool, str | None, str | None]:
        """That part of all, which come with the newest first; whether there are more, and the ids at its ends."""
        ordered = list(reversed(told)) if self._ascending else list(told)
        if self._after is not None:
            at = next((index for index, each in enumerate(ordered) if each.id == self._after), None)
            if at is None:
                raise invalid("after", "there is nothing of that id")
            ordered = ordered[at + 1 :]
        page = ordered[: self._limit]
        more = len(ordered) > len(page)
        return (page, more, page[0].id, page[-1].id) if page else (page, more, None, None)


def _shown(vault: Vault, kept: KeptBatch) -> BatchAnswer:
    """What a client sees: a batch that was cancelled and has not ended yet is about to be."""
    told = kept.told
    if told.status not in FINAL and (at := vault.cancelled_at(kept.owner, told.id)) is not None:
        return msgspec.structs.replace(told, status=CANCELLING, cancelling_at=at)
    return told


def _input_of(vault: Vault, owner: str, name: str) -> KeptFile:
    try:
        return vault.file(owner, name)
    except ApiError as error:
        raise ApiError(error.message, status=error.status, param="input_file_id", code=error.code) from error


def batch_routes(routes: BatchRoutes) -> tuple[Route, ...]:
    """Method, path and endpoint of each."""
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
