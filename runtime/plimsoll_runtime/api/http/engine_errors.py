"""What an engine could not answer, as clients are told of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.lateness import too_late
from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.errors import EngineDeadError, UsageError


def check_output(output: RequestOutput) -> None:
    """Raises ApiError where the engine has given the request up."""
    if output.finish_reason == "deadline":
        raise too_late(output.error or "its deadline passed")
    if output.error is not None:
        raise failed(output.error)


def failed(reason: str = "the engine ended the request without an answer") -> ApiError:
    """The engine has ended a request without its answer."""
    return ApiError(
        f"The engine could not go on with the request: {reason}.",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="engine_error",
    )


@contextmanager
def as_api_errors() -> Iterator[None]:
    """Raises ApiError in place of EngineDeadError, after which the server ends too, and of UsageError."""
    try:
        yield
    except EngineDeadError as error:
        message = f"the engine died: {error}"
        raise ApiError(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, code="engine_died") from error
    except UsageError as error:
        raise ApiError(f"The request cannot be served: {error}.", code="invalid_value") from error
