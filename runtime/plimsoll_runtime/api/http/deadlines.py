"""Deadlines of requests: their work ends when the client stops waiting."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.sse import Events
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

HEADER = "x-request-timeout"
LONGEST = 86_400.0


def client_timeout(given: str | None) -> float | None:
    """Return the seconds in the header; None without it. Raises ApiError unless it is above 0 and at most LONGEST."""
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise ApiError(
            f"Invalid value for the header {HEADER}: it must be a number of seconds above 0 and at most {LONGEST:g}.",
            param=HEADER,
            code="invalid_value",
        )
    return seconds


def too_late(reason: str) -> ApiError:
    """Return the error (504) for a missed deadline, with the header that stops automatic retries of OpenAI's
    clients."""
    return ApiError(
        f"The request missed its deadline: {reason}. Allow more time, send a shorter input, or ask for fewer tokens.",
        status=HTTPStatus.GATEWAY_TIMEOUT,
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


@contextmanager
def too_late_is_told(record: RequestRecord) -> Iterator[None]:
    """Raise ApiError (504) instead of TimeoutError when the request's deadline passes."""
    try:
        yield
    except TimeoutError as error:
        if record.patience is None:
            raise
        raise too_late(f"it did not finish within {record.patience:g} s of its arrival ({HEADER})") from error


async def in_time(events: Events, record: RequestRecord) -> Events:
    """Yield the events of a stream until the client's deadline. Raises ApiError (504) after it."""
    async with aclosing(events):
        while True:
            with too_late_is_told(record):
                async with asyncio.timeout_at(record.until):
                    event = await anext(events, None)
            if event is None:
                return
            yield event
