"""Requests for which nobody waits any more: what runs for them ends, whatever it is."""

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
    """The seconds that a client says it waits. Raises ApiError for what is no number of seconds above 0."""
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise ApiError(
            f"Invalid value for the header {HEADER}: it must be a number of seconds above 0 and up to {LONGEST:g}.",
            param=HEADER,
            code="invalid_value",
        )
    return seconds


def too_late(reason: str) -> ApiError:
    """The answer would have been of no use: OpenAI's clients are told not to try again by themselves."""
    return ApiError(
        f"The request was given up: {reason}. Allow more time, or send less.",
        status=HTTPStatus.GATEWAY_TIMEOUT,
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


@contextmanager
def too_late_is_told(record: RequestRecord) -> Iterator[None]:
    """Raises ApiError (504) in place of a TimeoutError at the end of a request's patience."""
    try:
        yield
    except TimeoutError as error:
        if record.patience is None:
            raise
        raise too_late(f"it is not done {record.patience:g} s after it came ({HEADER})") from error


async def in_time(events: Events, record: RequestRecord) -> Events:
    """The events of a stream, as long as the client waits for them. Raises ApiError (504) then."""
    async with aclosing(events):
        while True:
            with too_late_is_told(record):
                async with asyncio.timeout_at(record.until):
                    event = await anext(events, None)
            if event is None:
                return
            yield event
