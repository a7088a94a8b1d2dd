"""Reads a request's body within limits and decodes its JSON into a schema, with errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from plimsoll_runtime.api.http.concurrency import LONG_BODY, ClientGoneError
from plimsoll_runtime.api.http.errors import ApiError, too_large
from plimsoll_runtime.api.schemas import response_input, response_request
from plimsoll_runtime.api.schemas.constraints import FORMATS
from plimsoll_runtime.api.schemas.messages import BLOCKS, CHOICES, THOUGHTS
from plimsoll_runtime.api.schemas.parts import PART_FORMS, PARTS, TEXT
from plimsoll_runtime.api.schemas.tools import ALLOWED, NAMED, WORD
from plimsoll_runtime.api.server.limits import OPTION, body_limit
from plimsoll_runtime.errors import UNREADABLE

MAX_VALUES = 500_000
"""Most strings, lists and objects in one body, including field names."""
_PIECE = 2**20
_MARKS = (b'"', b"[", b"{")
_BEGIN = re.compile(rb'["\[{]')
_TEXT = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){0,1024}+', re.DOTALL)
"""A part of a string: one match over 30 MB of escapes would block other threads for 0.8 s."""


def check_values(data: bytes | bytearray) -> None:
    """Raise ApiError (400) if the body has more than `MAX_VALUES` strings, lists and objects.

    An empty list, two bytes of JSON, becomes an object of sixty. Decoding it takes 0.3 us and lets no other thread run:
    28 MiB of empty lists stalled every stream for 2 s and took 450 MB. Numbers are not counted: a token id costs 0.04
    us.
    """
    if _marks(data) <= MAX_VALUES:
        return
    # Most of these quotes and brackets may be inside strings, so count exactly.
    count = at = 0
    while (begin := _BEGIN.search(data, at)) is not None:
        count, at = count + 1, begin.end()
        if count > MAX_VALUES:
            raise ApiError(
                f"The body has more than {MAX_VALUES} strings, lists and objects, the limit; send fewer.",
                code="body_too_large",
            )
        if begin[0] == b'"':
            at = _end_of_text(data, at) + 1


def _end_of_text(data: bytes | bytearray, at: int) -> int:
    """Return the index of the quote that ends the string, or of the body's end."""
    while (part := _TEXT.match(data, at)) is not None and part.end() > at:
        at = part.end()
    return at


def _marks(data: bytes | bytearray) -> int:
    """Count the quotes and opening brackets, in pieces of 1 MiB, so that other threads can run in between."""
    return sum(data.count(mark, at, at + _PIECE) for at in range(0, len(data), _PIECE) for mark in _MARKS)


IDLE_SECONDS = 60.0
"""Longest pause within a body: a stalled client would otherwise stay a request in flight."""
LINGER_BYTES = 64 * 2**20
LINGER_SECONDS = 5.0

SchemaT = TypeVar("SchemaT", bound=BaseModel)


async def read_body(request: Request) -> bytearray:
    """Return the body, which must be JSON. Raises ApiError (413 if it is too large, 408 if it stalls, 400 for
    another content type), ClientGoneError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        told = f"not {kind!r}" if kind else "which is missing"
        message = f"The body must be JSON; set the header Content-Type to application/json, {told}."
        raise ApiError(message, code="unsupported_content_type")
    return await _read_bounded(request)


def parse(data: bytes | bytearray, schema: type[SchemaT]) -> SchemaT:
    """Decode and validate a JSON body strictly: no NaN and no numbers in strings. Raises ApiError (400)."""
    if len(data) > MAX_VALUES:
        check_values(data)
    try:
        return schema.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=True)[0]) from error


class Head(msgspec.Struct, frozen=True):
    """The fields that are needed before the rest of a body is decoded."""

    model: str
    stream: bool | None = None


def read_head(data: bytes | bytearray, schema: type[SchemaT]) -> Head | SchemaT:
    """Return the decoded body, or only the head of a very long one, which takes little memory. Raises ApiError.

    A request waits for its model or its turn after this, and a long decoded body takes twenty times its size.
    """
    if len(data) > LONG_BODY:
        with suppress(*UNREADABLE):  # the schema's own error is clearer
            return msgspec.json.decode(data, type=Head)
    return parse(data, schema)


def read_rest(data: bytes | bytearray, head: Head | SchemaT, schema: type[SchemaT]) -> SchemaT:
    """Return the decoded body, which `read_head` may have decoded already. Raises ApiError."""
    return parse(data, schema) if isinstance(head, Head) else head


async def _read_bounded(request: Request) -> bytearray:
    pieces, limit = body_pieces(request), body_limit(request.scope)
    if declared_bytes(request) > limit:
        if "expect" not in request.headers:
            await linger(pieces)
        raise _too_large(limit, request.url.path)
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > limit:
            await linger(pieces)
            raise _too_large(limit, request.url.path)
    return data


def declared_bytes(request: Request) -> int:
    """Return the declared length of the body, 0 if there is none."""
    declared = request.headers.get("content-length", "")
    return int(declared[:18]) if declared.isdigit() else 0


async def body_pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body's chunks as they arrive. Raises ApiError (408 when it stalls), ClientGoneError."""
    chunks = request.stream()
    try:
        while (chunk := await _next(chunks)) is not None:
            yield chunk
    except ClientDisconnect as error:
        raise ClientGoneError from error


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """Return the next chunk of a body, None at its end. Raises ApiError (408)."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise ApiError(
            f"No more data of the body arrived for {IDLE_SECONDS:g} s.",
            status=HTTPStatus.REQUEST_TIMEOUT,
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None


async def linger(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read and discard data for a while, so that a client that is still sending gets the response.

    A connection closed with unread data is reset, and the reset may overtake the response.
    """
    seen = 0
    with suppress(TimeoutError, ClientGoneError):
        async with asyncio.timeout(LINGER_SECONDS):
            async for piece in pieces:
                seen += len(piece)
                if seen >= LINGER_BYTES:
                    return


def _too_large(limit: int, path: str) -> ApiError:
    return too_large(f"The body is larger than {limit} bytes, the limit of {path} ({OPTION}); shorten it.")


def _refusal(detail: ErrorDetails) -> ApiError:
    kind, where = detail["type"], _path(detail["loc"])
    if kind == "json_invalid":
        return ApiError(f"The body is not valid JSON: {detail['msg'].removeprefix('Invalid JSON: ')}.")
    if not where:
        return ApiError(f"The body must be a JSON object: {detail['msg']}.")
    if kind == "extra_forbidden":
        return ApiError(f"Unknown parameter: '{where}'.", param=where, code="unknown_parameter")
    if kind == "missing":
        return ApiError(f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter")
    message = detail["msg"].removeprefix("Value error, ")
    return ApiError(f"Invalid value for '{where}': {message}.", param=where, code="invalid_value")


_FORMS = {
    *(TEXT, PARTS, WORD, NAMED, ALLOWED),
    *PART_FORMS.values(),
    *FORMATS.values(),
    *response_input.FORMS,
    *response_request.FORMS,
    *BLOCKS.values(),
    *CHOICES.values(),
    *THOUGHTS.values(),
}
"""Names that pydantic inserts into the location of a value that may have several types."""


def _path(location: Iterable[int | str]) -> str:
    """Return a location as a path: ("messages", 0, "content") as messages[0].content, cut to a length that fits in a
    message."""
    path = ""
    for part in location:
        if path and part in _FORMS:
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path if len(path) <= 200 else f"{path[:200]}..."
