"""Errors of a host, for clients of the OpenAI API and of the host API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from plimsoll_runtime.api.host.tokenizers import Failure
from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError, json_response
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.residency.errors import DoesNotFit, HostError, NotPlaced, OperationConflict, Refused, Superseded
from plimsoll_runtime.residency.lifecycle.operations import OperationStatus


@contextmanager
def as_api_errors() -> Iterator[None]:
    """Turn a HostError into an ApiError: 404 for a model that was just removed, 503 or 507 if it cannot be loaded."""
    try:
        yield
    except HostError as error:
        raise _api_error(error) from error


def retry_after(error: Exception) -> int:
    """Return whole seconds after which a retry may succeed."""
    return max(1, math.ceil(error.retry_after)) if isinstance(error, Refused) else RETRY_AFTER


def unusable(failure: Failure) -> ApiError:
    """Return the error (503) for a model whose tokenizer cannot be read, until the next attempt."""
    error = failure.error
    what = str(error) if isinstance(error, PlimsollError) else f"{type(error).__name__}: {error}"
    headers = {"Retry-After": str(max(1, math.ceil(failure.seconds)))}
    message = f"The model's files cannot be used: {what}"
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code="load_failed", headers=headers)


def _api_error(error: HostError) -> ApiError:
    message = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if isinstance(error, NotPlaced):
        return ApiError(message, status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found")
    if isinstance(error, DoesNotFit):
        # A retry cannot succeed, and OpenAI's clients would retry.
        headers = {"x-should-retry": "false"}
        return ApiError(message, status=HTTPStatus.INSUFFICIENT_STORAGE, code=error.code, headers=headers)
    headers = {"Retry-After": str(retry_after(error))}
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code=error.code, headers=headers)


KINDS = {
    ErrorKind.MEMORY: HTTPStatus.INSUFFICIENT_STORAGE,
    ErrorKind.ENGINE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorKind.DEVICE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorKind.FETCH: HTTPStatus.SERVICE_UNAVAILABLE,
}


class ErrorBody(msgspec.Struct, frozen=True):
    """An error: `code` for programs, `message` for people."""

    code: str
    message: str


class HostErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every response with a status from 400."""

    error: ErrorBody


class RequestError(Exception):
    """A refused request to the host API."""

    def __init__(self, status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers

    @property
    def answer(self) -> Response:
        """The HTTP response of the error."""
        return json_response(HostErrorAnswer(ErrorBody(self.code, str(self))), self.status, self.headers)


def outcome_response(outcome: OperationStatus) -> Response:
    """Return 200 with the model's entry of the report (null once it is removed), or 202 while the operation runs.

    Raises RequestError if the operation failed.
    """
    if outcome.error is not None:
        raise request_error(outcome.error)
    return json_response(outcome.model, HTTPStatus.OK if outcome.done else HTTPStatus.ACCEPTED)


def request_error(error: PlimsollError) -> RequestError:
    """Turn an error into an HTTP error. The class of a HostError determines the status, for other errors their kind."""
    status, code = _status_and_code(error)
    unavailable = status is HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"Retry-After": str(retry_after(error))} if unavailable else None
    return RequestError(status, code, str(error), headers)


def _status_and_code(error: PlimsollError) -> tuple[HTTPStatus, str]:
    if isinstance(error, NotPlaced):
        return HTTPStatus.NOT_FOUND, error.code
    if isinstance(error, OperationConflict | Superseded):
        return HTTPStatus.CONFLICT, error.code
    if isinstance(error, DoesNotFit):
        return HTTPStatus.INSUFFICIENT_STORAGE, error.code
    if isinstance(error, HostError):
        return HTTPStatus.SERVICE_UNAVAILABLE, error.code
    return KINDS.get(error.kind, HTTPStatus.BAD_REQUEST), error.kind.value
