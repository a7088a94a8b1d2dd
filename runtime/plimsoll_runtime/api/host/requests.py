"""Bodies and queries of the host API, read strictly, with errors that name the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request

from plimsoll_runtime.api.host.errors import RequestError
from plimsoll_runtime.api.http.concurrency import ClientGoneError
from plimsoll_runtime.errors import UNREADABLE
from plimsoll_runtime.residency.spec import ModelSpec, decode_spec
from plimsoll_runtime.residency.states import Level

BODY_LIMIT = 64 * 2**10
BODY_SECONDS = 30.0
MAX_WAIT = 60.0
"""Longest time that a request may wait for a report."""

Operation = Annotated[str, Meta(min_length=1, max_length=256, description="The caller's own name for this change.")]


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every change. Repeating an operation returns the same result and has no second effect."""

    operation: Operation


class PlaceRequest(_Change, frozen=True, kw_only=True):
    """PUT of a model: places it, or changes its spec, and brings it to at least the sleep level `level`."""

    spec: msgspec.Raw
    level: Level


class RemoveRequest(_Change, frozen=True, kw_only=True):
    """DELETE of a model."""


class WakeRequest(_Change, frozen=True, kw_only=True):
    """POST .../wake."""


class SleepRequest(_Change, frozen=True, kw_only=True):
    """POST .../sleep: to an image in host memory, or to files only."""

    level: Literal["InHost", "OnDisk"]


class PinRequest(_Change, frozen=True, kw_only=True):
    """POST .../pin. Fields that are left out keep their values."""

    pinned: bool | None = None
    weight: float | None = None
    priority: int | None = None


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


async def read_change(request: Request, kind: type[BodyT]) -> BodyT:
    """Return the body of a change. Raises RequestError (400, 408, 413), ClientGoneError."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise _bad("The body must be JSON; set the header Content-Type to application/json")
    data = await _bounded(request)
    return _decoded(lambda: msgspec.json.decode(data, type=kind))


def model_spec(body: PlaceRequest) -> ModelSpec:
    """Return the spec of a placement. Raises RequestError (400), UsageError."""
    return _decoded(lambda: decode_spec(bytes(body.spec)))


def report_query(request: Request) -> tuple[int, float]:
    """Return the query's `after` (a sequence number; -1 if missing) and `wait` (seconds; 0 if missing). Raises
    RequestError (400)."""
    return _number(request, "after", int, -1, 2**63 - 1), _number(request, "wait", float, 0.0, MAX_WAIT)


NumberT = TypeVar("NumberT", int, float)


def _number(request: Request, name: str, kind: Callable[[str], NumberT], least: NumberT, most: NumberT) -> NumberT:
    text = request.query_params.get(name)
    if text is None:
        return least
    try:
        value = kind(text)
    except ValueError:
        raise _bad(f"{name}: {text[:64]!r} is not a number") from None
    if not least <= value <= most:
        raise _bad(f"{name}: {text[:64]} is not between {least} and {most}")
    return value


async def _bounded(request: Request) -> bytes:
    data = bytearray()
    closing = {"Connection": "close"}
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > BODY_LIMIT:
                    told = f"the body is larger than the limit of {BODY_LIMIT} bytes"
                    raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", told, closing)
    except TimeoutError:
        told = f"the body was not complete after {BODY_SECONDS:g} s"
        raise RequestError(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", told, closing) from None
    except ClientDisconnect as error:
        raise ClientGoneError from error
    return bytes(data)


def _decoded(decode: Callable[[], BodyT]) -> BodyT:
    try:
        return decode()
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$").removeprefix(".")
        raise _bad(f"{field}: {what}" if field else what) from error
    except UNREADABLE as error:
        raise _bad(f"the body is not valid JSON: {error}") from error


def _bad(message: str) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, "invalid", message)
