"""Lines of a batch file: parsing, output lines, and the check of a whole file before its first line runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.batches.records import BatchFault
from plimsoll_runtime.api.chat.endpoint import chat
from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.endpoints.completions import completions
from plimsoll_runtime.api.endpoints.embeddings import embeddings
from plimsoll_runtime.api.endpoints.scoring import classify, rerank, score
from plimsoll_runtime.api.http.body import parse
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.sampling import ModelFields, invalid
from plimsoll_runtime.batch.job import Row
from plimsoll_runtime.errors import UNREADABLE

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SCORE, RERANK, CLASSIFY = "/v1/score", "/v1/rerank", "/v1/classify"
ENDPOINTS: Mapping[str, Endpoint[Any]] = {
    CHAT: chat,
    COMPLETIONS: completions,
    EMBEDDINGS: embeddings,
    SCORE: score,
    RERANK: rerank,
    CLASSIFY: classify,
}
"""Endpoints that a line may name."""
_ASKED_BY = {"messages": CHAT, "prompt": COMPLETIONS, "input": EMBEDDINGS, "text_1": SCORE, "query": RERANK}
"""The endpoint of a body without `url`, by a field that the body has."""
_FORM = frozenset({"custom_id", "method", "url", "body"})
MAX_ID = 512

Fields = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings for all lines of a batch.

    `job` is part of the ids in the output. `created` is the Unix time in all responses. `endpoint` is that of lines
    without one. If `strict`, every line has OpenAI's format and a custom_id, and may name no other endpoint. `defaults`
    are fields, as JSON, for bodies that lack them. From `seed`, each line without a seed gets one of its own. `tenant`
    is the namespace of cached prefixes (see `RequestRecord`). If `sourced`, error lines name the file and line of their
    row.
    """

    job: str
    created: int
    endpoint: str | None = None
    strict: bool = False
    defaults: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    seed: int | None = None
    tenant: str = ""
    sourced: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A line whose body has not been checked yet."""

    custom_id: str
    endpoint: Endpoint[Any]
    fields: Fields

    @property
    def model(self) -> str | None:
        """The model that the line names; None if it has no valid name."""
        try:
            return msgspec.json.decode(self.fields.get("model", msgspec.Raw(b"null")), type=str | None)
        except UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed and checked line."""

    custom_id: str
    endpoint: Endpoint[Any]
    body: ModelFields


class LineResponse(msgspec.Struct):
    """The HTTP response of the endpoint; `ignored` is its header with the names of unknown fields."""

    status_code: int
    request_id: str
    body: Any
    ignored: str | UnsetType = UNSET


class LineFault(msgspec.Struct):
    """Why a line did not run."""

    code: str
    message: str


class Source(msgspec.Struct):
    """File and line of a row."""

    file: str
    line: int


class LineAnswer(msgspec.Struct):
    """A line of a batch's output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFault | None = None
    source: Source | UnsetType = UNSET


def custom_id_of(row: Row) -> str:
    """Return the line's custom_id, or `row-INDEX` if it has none that can be read."""
    fallback = f"row-{row.index}"
    try:
        given = msgspec.json.decode(row.data, type=dict[str, msgspec.Raw]).get("custom_id")
        return fallback if given is None else msgspec.json.decode(given, type=str)[:MAX_ID]
    except UNREADABLE:
        return fallback


def read_form(row: Row, terms: Terms) -> Form:
    """Return a row's endpoint and unchecked body. Raises ApiError (400)."""
    if row.fault is not None:
        raise ApiError(f"The line {row.fault}.", code="invalid_line")
    fields = _object(row.data, "The line")
    custom_id = _custom_id(fields.pop("custom_id", None), terms) or f"row-{row.index}"
    url = terms.endpoint
    if terms.strict or ("body" in fields and fields.keys() <= _FORM):
        url = _url(fields, terms)
        fields = _object(fields.get("body", msgspec.Raw(b"null")), "'body'")
    elif url is None:
        url = next((url for name, url in _ASKED_BY.items() if name in fields), None)
        if url is None:
            raise ApiError(_no_request(fields), code="invalid_line")
    return Form(custom_id, ENDPOINTS[url], {**terms.defaults, **fields})


def _no_request(fields: Fields) -> str:
    """Return the error message for a line whose endpoint is not known: neither a request with `body` nor a body
    alone."""
    if "body" in fields:
        return f"The line has 'body' and other fields than {', '.join(sorted(_FORM))}; remove these."
    return f"The line has no 'body' and none of the fields {', '.join(_ASKED_BY)}; add one."


def read_line(row: Row, terms: Terms) -> Line:
    """Return a row's checked request. Raises ApiError (400) that says what is wrong with it."""
    form = read_form(row, terms)
    fields, endpoint = form.fields, form.endpoint
    if terms.seed is not None and "seed" in endpoint.schema.model_fields:
        fields.setdefault("seed", msgspec.Raw(b"%d" % _seed(terms.seed, row.index)))
    body = parse(msgspec.json.encode(fields), endpoint.schema)
    if body.stream:
        raise invalid("stream", "batches do not stream; leave it out")
    return Line(form.custom_id, endpoint, body)


def answer_line(row: Row, custom_id: str, terms: Terms, status: int, body: msgspec.Struct, ignored: str) -> bytes:
    """Return the output line for a response or an error response."""
    request_id = request_id_of(row, terms)
    answer = LineAnswer(f"batch_req_{request_id}", custom_id, LineResponse(status, request_id, body, ignored or UNSET))
    if terms.sourced and status != HTTPStatus.OK:
        answer.source = Source(row.file, row.line)
    return msgspec.json.encode(answer)


def unasked_line(row: Row, terms: Terms, fault: LineFault) -> bytes:
    """Return the output line for a row that did not run."""
    return msgspec.json.encode(LineAnswer(f"batch_req_{request_id_of(row, terms)}", custom_id_of(row), None, fault))


def request_id_of(row: Row, terms: Terms) -> str:
    """Return the request id of a row; it is the same each time the row runs."""
    return f"{terms.job}-{row.index}"


def _object(data: bytes | msgspec.Raw, what: str) -> Fields:
    try:
        return msgspec.json.decode(data, type=Fields)
    except UNREADABLE as error:
        raise ApiError(f"{what} is not a JSON object: {error}.", code="invalid_line") from error


def _text(value: msgspec.Raw | None, name: str) -> str | None:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except UNREADABLE as error:
        raise invalid(name, "it must be a string") from error


def _custom_id(value: msgspec.Raw | None, terms: Terms) -> str | None:
    given = _text(value, "custom_id")
    if given is None:
        if terms.strict:
            raise ApiError("Missing required parameter: 'custom_id'.", param="custom_id", code="invalid_line")
    elif not 1 <= len(given) <= MAX_ID:
        raise invalid("custom_id", f"it must have 1 to {MAX_ID} characters")
    return given


def _url(fields: Fields, terms: Terms) -> str:
    """Return the path of the endpoint that a line in OpenAI's format names, by default that of `terms`. Raises ApiError
    for an unknown field, method or path."""
    if unknown := sorted(fields.keys() - _FORM):
        raise ApiError(f"Unknown parameter: '{unknown[0][:200]}'.", param=unknown[0][:200], code="unknown_parameter")
    method, url = _text(fields.get("method"), "method"), _text(fields.get("url"), "url") or terms.endpoint
    if method not in (None, "POST"):
        raise invalid("method", "it must be POST")
    if url is None or url not in ENDPOINTS:
        raise invalid("url", f"it must be one of {', '.join(ENDPOINTS)}")
    if terms.strict and url != terms.endpoint:
        raise invalid("url", f"it must be {terms.endpoint}, the batch's endpoint")
    return url


def _seed(seed: int, index: int) -> int:
    return int.from_bytes(sha256(b"%d:%d" % (seed, index)).digest()[:7], "big")


MAX_LINES = 50_000
"""Most lines of a file for /v1/batches, as at OpenAI. `plimsoll batch` has no limit."""
MAX_FAULTS = 20


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A checked file: its number of lines, the model that all of them name, and the first faults. With faults, the
    number and the model are those found before the check stopped."""

    lines: int
    model: str | None
    faults: list[BatchFault]


def check_lines(rows: Iterable[Row], terms: Terms) -> CheckedFile:
    """Check that every line can be parsed, that each custom_id is unique, and that all lines name one model. Invalid
    requests in lines are no faults of the file: their results report them."""
    faults: list[BatchFault] = []
    seen: set[str] = set()
    lines, model = 0, None
    for row in rows:
        lines += 1
        if lines > MAX_LINES:
            faults.append(
                BatchFault("too_many_tasks", f"The file has more than {MAX_LINES} lines; split it.", line=row.line)
            )
            break
        fault, asked = _fault(row, terms, seen)
        model = model or asked
        if fault is None and asked != model:
            message = f"This line names the model '{asked}' and the first one '{model}'; use one model for each batch."
            fault = BatchFault("mismatched_model", message, "body.model", row.line)
        if fault is not None:
            faults.append(fault)
            if len(faults) == MAX_FAULTS:
                break
    if not lines:
        faults.append(BatchFault("empty_file", "The file has no lines.", "input_file_id"))
    return CheckedFile(lines, model, faults)


def _fault(row: Row, terms: Terms, seen: set[str]) -> tuple[BatchFault | None, str | None]:
    """Return a line's fault and None, or None and the model that the line names. `seen` has the custom_ids of earlier
    lines; that of this line is added."""
    try:
        form = read_form(row, terms)
    except ApiError as error:
        return BatchFault(error.code or "invalid_line", error.message, error.param, row.line), None
    if form.custom_id in seen:
        message = f"The custom_id '{form.custom_id}' occurs in an earlier line; make it unique."
        return BatchFault("duplicate_custom_id", message, "custom_id", row.line), None
    seen.add(form.custom_id)
    return None, form.model
