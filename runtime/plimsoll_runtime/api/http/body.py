"""Reads a request's body within limits and decodes its JSON into a schema, with errors in OpenAI's terms."""

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
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas import response_input, response_request
from plimsoll_runtime.api.schemas.constraints import FORMATS
from plimsoll_runtime.api.schemas.messages import BLOCKS, CHOICES, THOUGHTS
from plimsoll_runtime.api.schemas.parts import PART_FORMS, PARTS, TEXT
from plimsoll_runtime.api.schemas.tools import ALLOWED, NAMED, WORD
from plimsoll_runtime.api.server.limits import OPTION, body_limit
from plimsoll_runtime.errors import UNREADABLE

MAX_VALUES = 500_000
"""Texts, lists and objects in one body, names of fields included."""
_PIECE = 2**20
_MARKS = (b'"', b"[", b"{")
_BEGIN = re.compile(rb'["\[{]')
_TEXT = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){0,1024}+', re.DOTALL)
"""A part of a text: one match over 30 MB of escapes would hold up other threads for 0.8 s."""


def check_values(data: bytes | bytearray) -> None:
    """Raises ApiError (400) when the body holds more than `MAX_VALUES`.

    A list of two bytes becomes an object of sixty. The decoder takes 0.3 us for each and lets no other thread run
    meanwhile: 28 MiB of empty lists stalled every stream for 2 s and took 450 MB. Numbers are not counted: a token id
    costs 0.04 us.
    """
    if _marks(data) <= MAX_VALUES:
        return
    # Most of those marks may stand within texts: only now are they told apart.
    count = at = 0
    while (begin := _BEGIN.search(data, at)) is not None:
        count, at = count + 1, begin.end()
        if count > MAX_VALUES:
            raise ApiError(
                f"The body holds more than {MAX_VALUES} texts, lists and objects; send fewer at once.",
                code="body_too_large",
            )
        if begin[0] == b'"':
            at = _end_of_text(data, at) + 1


def _end_of_text(data: bytes | bytearray, at: int) -> int:
    """Where the quote stands that ends the text, or where the body does."""
    while (part := _TEXT.match(data, at)) is not None and part.end() > at:
        at = part.end()
    return at


def _marks(data: bytes | bytearray) -> int:
    """In pieces, between which other threads may run."""
    return sum(data.count(mark, at, at + _PIECE) for at in range(0, len(data), _PIECE) for mark in _MARKS)


IDLE_SECONDS = 60.0
"""How long a body may pause: a client that stalls would otherwise count as a request in flight for ever."""
LINGER_BYTES = 64 * 2**20
LINGER_SECONDS = 5.0

SchemaT = TypeVar("SchemaT", bound=BaseModel)


async def read_body(request: Request) -> bytearray:
    """The body, which is to be JSON. Raises ApiError (413 when it is too large, 408 when it stalls, 400 when it is
    said to be something else), ClientGoneError.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        told = f"not {kind!r}" if kind else "which the request lacks"
        message = f"The body must be JSON: set the header Content-Type to application/json, {told}."
        raise ApiError(message, code="unsupported_content_type")
    return await _read_bounded(request)


def parse(data: bytes | bytearray, schema: type[SchemaT]) -> SchemaT:
    """Validate JSON text strictly: no NaN, no numbers in strings, no unknown fields. Raises ApiError (400)."""
    if len(data) > MAX_VALUES:
        check_values(data)
    try:
        return schema.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=True)[0]) from error


class Head(msgspec.Struct, frozen=True):
    """What must be known of a request before the rest of it is decoded."""

    model: str
    stream: bool | None = None


def read_head(data: bytes | bytearray, schema: type[SchemaT]) -> Head | SchemaT:
    """The whole body of a request, or of a very long one its head alone, which costs no memory. Raises ApiError.

    What is read ahead waits, for its model or for its turn, and a long one takes twenty times its size then.
    """
    if len(data) > LONG_BODY:
        with suppress(*UNREADABLE):  # the schema says better what is wrong
            return msgspec.json.decode(data, type=Head)
    return parse(data, schema)


def read_rest(data: bytes | bytearray, head: Head | SchemaT, schema: type[SchemaT]) -> SchemaT:
    """The whole body, where `read_head` has not read it. Raises ApiError."""
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
    """What the body is said to have; 0 where nothing is said."""
    declared = request.headers.get("content-length", "")
    return int(declared[:18]) if declared.isdigit() else 0


async def body_pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises ApiError (408 when it stalls), ClientGoneError."""
    chunks = request.stream()
    try:
        while (chunk := await _next(chunks)) is not None:
            yield chunk
    except ClientDisconnect as error:
        raise ClientGoneError from error


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next piece of a body, None at its end."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise ApiError(
            f"Nothing more of the body arrived for {IDLE_SECONDS:g} s.",
            status=HTTPStatus.REQUEST_TIMEOUT,
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None


async def linger(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read on for a while without keeping anything: a client that is still sending would miss the answer.

    A connection closed with unread data is reset, and the reset may overtake the answer.
    """
    seen = 0
    with suppress(TimeoutError, ClientGoneError):
        async with asyncio.timeout(LINGER_SECONDS):
            async for piece in pieces:
                seen += len(piece)
                if seen >= LINGER_BYTES:
                    return


def _too_large(limit: int, path: str) -> ApiError:
    return ApiError(
        f"The body is larger than {limit} bytes, the limit of {path} ({OPTION}); send less.",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="body_too_large",
        headers={"Connection": "close"},
    )


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
"""What pydantic puts into places where a value may have several forms."""


def _path(location: Iterable[int | str]) -> str:
    """("messages", 0, "content") as messages[0].content, cut to a length that fits in a message."""
    path = ""
    for part in location:
        if path and part in _FORMS:
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path if len(path) <= 200 else f"{path[:200]}..."
