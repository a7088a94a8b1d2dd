"""The format of errors, and the last events of streams, of each API: OpenAI's, and Anthropic's on its own paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from plimsoll_gateway.errors.refusals import ANTHROPIC_OVERLOADED, UNAVAILABLE, Refusal

MESSAGES = "/v1/messages"
MODELS = "/v1/models"
RESPONSES = "/v1/responses"
_NEXT = b"\n\nevent: "
_LAST = tuple(b"event: response.%s\n" % kind for kind in (b"completed", b"incomplete", b"failed"))
VERSION = b"anthropic-version"
"""A header that Anthropic's clients always send. Both APIs have the paths of the models."""
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    ANTHROPIC_OVERLOADED: "overloaded_error",
    504: "timeout_error",
}


class Dialect(Protocol):
    """The error format of one API."""

    def ends(self, events: bytes) -> bool:
        """Return whether the last of these events is the one that ends a complete stream of this API."""

    def status(self, refusal: Refusal) -> int:
        """Return the HTTP status to send for a refusal: its own, or 529 in place of 503 for Anthropic's clients."""

    def body(self, refusal: Refusal, request_id: str) -> bytes:
        """Return the error as JSON (pure ASCII, so that any text of a client can be quoted)."""

    def event(self, refusal: Refusal, request_id: str) -> bytes:
        """Return the error as one server-sent event, for a stream that has begun."""

    @property
    def id_names(self) -> tuple[bytes, ...]:
        """The headers that carry the id of a request."""


class _OpenAI:
    id_names = (b"x-request-id",)

    def ends(self, events: bytes) -> bool:
        return events.endswith(b"data: [DONE]\n\n")

    def status(self, refusal: Refusal) -> int:
        return refusal.status

    def body(self, refusal: Refusal, request_id: str) -> bytes:
        return refusal.body

    def event(self, refusal: Refusal, request_id: str) -> bytes:
        return b"data: " + refusal.body + b"\n\n"


class _Responses(_OpenAI):
    """OpenAI's Responses API. A broken stream ends with the error of OpenAI's other streams, which OpenAI's clients
    raise as an exception. The API's own event of the type `error` they would return like any other event.
    """

    def ends(self, events: bytes) -> bool:
        last = events.rfind(_NEXT)  # the text of an event contains no such line ends
        return events.startswith(_LAST, 0 if last < 0 else last + 2)


class _Anthropic:
    id_names = (b"x-request-id", b"request-id")

    def ends(self, events: bytes) -> bool:
        return events.endswith(b'data: {"type":"message_stop"}\n\n')

    def status(self, refusal: Refusal) -> int:
        return ANTHROPIC_OVERLOADED if refusal.status == UNAVAILABLE else refusal.status

    def body(self, refusal: Refusal, request_id: str) -> bytes:
        status = self.status(refusal)
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        error = {"type": kind, "message": refusal.message, "details": {"error_code": refusal.code}}
        return json.dumps({"type": "error", "error": error, "request_id": request_id}).encode("ascii")

    def event(self, refusal: Refusal, request_id: str) -> bytes:
        return b"event: error\ndata: " + self.body(refusal, request_id) + b"\n\n"


OPENAI: Dialect = _OpenAI()
OF_RESPONSES: Dialect = _Responses()
ANTHROPIC: Dialect = _Anthropic()


def dialect_of(path: str, headers: Mapping[bytes, bytes]) -> Dialect:
    """Return the dialect of a request, whether the path exists or not."""
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return ANTHROPIC
    if path.startswith(RESPONSES):
        return OF_RESPONSES
    of_models = path == MODELS or path.startswith(f"{MODELS}/")
    return ANTHROPIC if of_models and VERSION in headers else OPENAI
