"""What a host refuses, as the errors that clients of the OpenAI API know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from plimsoll_runtime.api.hosting.tokenizers import Failure
from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.errors import DoesNotFit, HostError, NotPlaced, Refused


@contextmanager
def as_api_errors() -> Iterator[None]:
    """Turns a HostError into an ApiError: 404 for a model that has just left, 503 and 507 where it cannot be had."""
    try:
        yield
    except HostError as error:
        raise _api_error(error) from error


def retry_after(error: Exception) -> int:
    """Whole seconds after which asking again may help."""
    return max(1, math.ceil(error.retry_after)) if isinstance(error, Refused) else RETRY_AFTER


def unusable(failure: Failure) -> ApiError:
    """503 until it is tried again: the model can be loaded, and nothing can be said to it."""
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
        # Asking again cannot help, and OpenAI's clients would.
        headers = {"x-should-retry": "false"}
        return ApiError(message, status=HTTPStatus.INSUFFICIENT_STORAGE, code=error.code, headers=headers)
    headers = {"Retry-After": str(retry_after(error))}
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE, code=error.code, headers=headers)
