"""Errors of the API, and the `Dialect` in which the clients of a path expect errors and streams. The default is that
of OpenAI's older endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from plimsoll_runtime.api.schemas.message_events import (
    AnthropicError,
    AnthropicErrorBody,
    AnthropicErrorDetails,
    Ping,
)
from plimsoll_runtime.api.schemas.outputs import ErrorAnswer, ErrorDetails
from plimsoll_runtime.api.schemas.response_events import ErrorEvent
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

RETRY_AFTER = 5
"""Seconds after which a client may try again while the server is loading or draining."""


class ApiError(Exception):
    """A refusal or failure that is reported to the client.

    `param` is the path of the invalid field as clients write it ("messages[0].content"). `headers` are added to the
    response.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = int(status)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorAnswer:
        """The JSON object that describes the error."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return ErrorAnswer(ErrorDetails(self.message, kind, self.param, self.code))


def unavailable(message: str) -> ApiError:
    """Return an error (503) after which the client may retry in some seconds."""
    headers = {"Retry-After": str(RETRY_AFTER)}
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code="unavailable", headers=headers)


def too_large(message: str, code: str = "body_too_large", param: str | None = None) -> ApiError:
    """Return an error (413) that closes the connection, because the rest of the body is not read."""
    status, closing = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"Connection": "close"}
    return ApiError(message, status=status, param=param, code=code, headers=closing)


def json_response(body: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response, encoded by msgspec (structs, dicts, lists)."""
    return Response(
        msgspec.json.encode(body), status_code=status, media_type="application/json", headers=dict(headers or {})
    )


MESSAGES, MODELS = "/v1/messages", "/v1/models"
VERSION = "anthropic-version"
"""A header that Anthropic's clients always send. It tells them from OpenAI's clients on the paths of models."""
ANTHROPIC_OVERLOADED = 529
"""Status that Anthropic's clients get instead of 503."""
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# JSON escapes the other characters at which str.splitlines() splits: they are control characters below U+0020.
_LINE_ENDS = tuple((character.encode(), b"\\u%04x" % ord(character)) for character in "\x85\u2028\u2029")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The format of errors and streams for the clients of a path.

    `error` makes the body of an error response, and `status` its HTTP status. `broken` makes the last event of a
    failed stream; None uses `error`. If `named`, events have a line with their tag. `end` is the data of a stream's
    last event; None ends streams without one. `alive` is an event that keeps a waiting stream open; None sends a
    comment. `id_header` is an additional header with the request's id.
    """

    error: Callable[[ApiError], msgspec.Struct] = attrgetter("body")
    broken: Callable[[ApiError], msgspec.Struct] | None = None
    status: Callable[[ApiError], int] = attrgetter("status")
    named: bool = False
    end: bytes | None = b"[DONE]"
    alive: msgspec.Struct | None = None
    id_header: str | None = None

    def response(self, error: ApiError) -> Response:
        """Return the HTTP response of an error."""
        return json_response(self.error(error), self.status(error), error.headers)

    def last_words(self, error: ApiError) -> bytes:
        """Return the encoded event that ends a failed stream."""
        return self.event((self.broken or self.error)(error))

    def event(self, event: msgspec.Struct) -> bytes:
        """Return an encoded event of a stream."""
        data, tag = b"data: " + json_line(event), event.__struct_config__.tag
        return f"event: {tag}\n".encode() + data if self.named and isinstance(tag, str) else data


def json_line(event: msgspec.Struct) -> bytes:
    """Encode JSON as one line, also for clients that split text at Unicode's line ends."""
    data = msgspec.json.encode(event)
    if data.isascii():
        return data
    for raw, escape in _LINE_ENDS:
        data = data.replace(raw, escape)
    return data


def _response_error(error: ApiError) -> msgspec.Struct:
    """Return the last event of a stream that fails before its response exists; later a `response.failed` event ends
    it."""
    return ErrorEvent(sequence_number=0, code=error.code, message=error.message, param=error.param)


def _anthropic_error(request_id: str | None, error: ApiError) -> AnthropicError:
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return AnthropicError(AnthropicErrorBody(kind, error.message, AnthropicErrorDetails(error.code)), request_id)


def _anthropic_status(error: ApiError) -> int:
    return ANTHROPIC_OVERLOADED if error.status == HTTPStatus.SERVICE_UNAVAILABLE else error.status


OPENAI = Dialect()
ANTHROPIC = Dialect(
    error=partial(_anthropic_error, None),
    status=_anthropic_status,
    named=True,
    end=None,
    alive=Ping(),
    id_header="request-id",
)
"""Errors of a request also contain its id: see `dialect_of`."""
_OTHERS: Mapping[str, Dialect] = {"/v1/responses": Dialect(broken=_response_error, named=True, end=None)}
"""Dialects by the start of the path; all other paths except those of Anthropic's clients have OPENAI."""


def dialect_of(scope: Scope) -> Dialect:
    """Return the dialect of a request's path, even if the path does not exist."""
    path: str = scope["path"]
    if speaks_anthropic(scope):
        record: RequestRecord | None = scope.get("plimsoll.record")
        return replace(ANTHROPIC, error=partial(_anthropic_error, None if record is None else record.request_id))
    return next((dialect for start, dialect in _OTHERS.items() if path.startswith(start)), OPENAI)


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request comes from one of Anthropic's clients: by its path, or by the header VERSION on the
    paths of models."""
    path: str = scope["path"]
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return True
    return (path == MODELS or path.startswith(f"{MODELS}/")) and VERSION in Headers(scope=scope)
