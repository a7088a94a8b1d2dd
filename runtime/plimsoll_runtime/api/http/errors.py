"""Errors as OpenAI's clients expect them: a true status and {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from plimsoll_runtime.api.schemas.answers import ErrorAnswer, ErrorDetails

RETRY_AFTER = 5
"""Seconds after which a client may try again while the server is loading or draining."""


class ApiError(Exception):
    """A refusal or failure that the client is told about.

    `param` names the field at fault in the way clients write it ("messages[0].content"). `headers` go with the
    answer.
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
    """Not now: the client may come back in some seconds."""
    headers = {"Retry-After": str(RETRY_AFTER)}
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code="unavailable", headers=headers)


def json_response(body: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, encoded by msgspec (structs, dicts, lists)."""
    return Response(
        msgspec.json.encode(body), status_code=status, media_type="application/json", headers=dict(headers or {})
    )
