"""What clients of a path expect of errors and of streams. OpenAI's older endpoints set the rule; others differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from plimsoll_runtime.api.errors import ApiError, json_response
from plimsoll_runtime.api.schemas.response_events import ErrorEvent


def _error(error: ApiError) -> msgspec.Struct:
    return error.body


def _status(error: ApiError) -> int:
    return error.status


@dataclass(frozen=True, slots=True)
class Dialect:
    """`error` is the body of an answer that is an error, and `status` its HTTP status. `broken` is the last event of a
    stream that breaks off; None where that is the error as well. Where events are `named`, a line of its own says the
    tag of each that has one. `end`: the data of the event that ends every stream; None where streams just end.
    """

    error: Callable[[ApiError], msgspec.Struct] = _error
    broken: Callable[[ApiError], msgspec.Struct] | None = None
    status: Callable[[ApiError], int] = _status
    named: bool = False
    end: bytes | None = b"[DONE]"

    def response(self, error: ApiError) -> Response:
        """The answer that tells a client about an error."""
        return json_response(self.error(error), self.status(error), error.headers)

    def last_words(self, error: ApiError) -> bytes:
        """The event that ends a stream that breaks off, as it is sent."""
        return self.event((self.broken or self.error)(error))

    def event(self, event: msgspec.Struct) -> bytes:
        """An event of a stream, as it is sent."""
        data, tag = b"data: " + msgspec.json.encode(event), event.__struct_config__.tag
        return f"event: {tag}\n".encode() + data if self.named and isinstance(tag, str) else data


def _response_error(error: ApiError) -> msgspec.Struct:
    """Of a response that never began: one that did ends with an event of its own."""
    return ErrorEvent(sequence_number=0, code=error.code, message=error.message, param=error.param)


OPENAI = Dialect()
_OTHERS: Mapping[str, Dialect] = {"/v1/responses": Dialect(broken=_response_error, named=True, end=None)}
"""By the beginning of the path."""


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of a request's path, whether or not there is such a path."""
    path: str = scope["path"]
    return next((dialect for start, dialect in _OTHERS.items() if path.startswith(start)), OPENAI)
