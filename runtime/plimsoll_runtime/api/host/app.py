"""The host API: reports the models of a host, and places, wakes, puts to sleep and removes them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.host.access import Guard
from plimsoll_runtime.api.host.errors import RequestError, outcome_response, request_error
from plimsoll_runtime.api.host.models import HostModels
from plimsoll_runtime.api.host.requests import (
    PinRequest,
    PlaceRequest,
    RemoveRequest,
    SleepRequest,
    WakeRequest,
    model_spec,
    read_change,
    report_query,
)
from plimsoll_runtime.api.http.concurrency import CLIENT_GONE, ClientGoneError, unless_gone
from plimsoll_runtime.api.http.errors import json_response
from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.options import serving_options
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.lifecycle.operations import OperationStatus
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import Level

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

MODEL = "/host/v1/models/{namespace}/{name}"


def build_host_app(host: Host, models: HostModels, guard: Guard) -> FastAPI:
    """Return the application of the host API. It checks the token before it reads a body or answers."""
    app = FastAPI(title="Plimsoll host", redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)
    routes = HostRoutes(host, models)
    for route in ROUTES:
        endpoint = _guarded(partial(route.endpoint, routes), guard)
        app.add_api_route(route.path, endpoint, methods=[route.method], response_model=None)
    app.add_exception_handler(HTTPException, _answer_http_error)
    return app


class HostRoutes:
    """The handlers of the routes."""

    def __init__(self, host: Host, models: HostModels) -> None:
        self._host = host
        self._models = models

    async def report(self, request: Request) -> Response:
        """Return the report once its sequence exceeds `after`, or after `wait` seconds. An `after` beyond the present
        sequence comes from an earlier process of the host; the report is then returned immediately."""
        after, wait = report_query(request)
        if wait == 0 or after > self._host.sequence:
            return json_response(self._host.report())
        return json_response(await unless_gone(request.receive, self._host.changed(after, wait)))

    async def place(self, request: Request) -> Response:
        """Place a model, or change its spec."""
        name, body = _name(request), await read_change(request, PlaceRequest)
        spec = model_spec(body)
        serving_options(spec.runtime)
        if (taken := self._models.taken(name, spec)) is not None:
            raise UsageError(f"spec.servedNames: {taken[0]!r} is a name of {taken[1]}; choose another name")
        return _told(request, body.operation, self._host.place(name, spec, body.level, body.operation))

    async def remove(self, request: Request) -> Response:
        """Drain a model and remove it."""
        name, body = _name(request), await read_change(request, RemoveRequest)
        return _told(request, body.operation, self._host.remove(name, body.operation))

    async def wake(self, request: Request) -> Response:
        """Wake a model."""
        name, body = _name(request), await read_change(request, WakeRequest)
        return _told(request, body.operation, self._host.wake(name, body.operation))

    async def sleep(self, request: Request) -> Response:
        """Put a model to sleep."""
        name, body = _name(request), await read_change(request, SleepRequest)
        return _told(request, body.operation, self._host.sleep(name, Level(body.level), body.operation))

    async def pin(self, request: Request) -> Response:
        """Set whether a model is pinned, its weight and its priority."""
        name, body = _name(request), await read_change(request, PinRequest)
        outcome = self._host.pin(name, body.operation, pinned=body.pinned, weight=body.weight, priority=body.priority)
        return _told(request, body.operation, outcome)


class Route(NamedTuple):
    """Method, path, handler and body type of a route."""

    method: str
    path: str
    endpoint: Callable[[HostRoutes, Request], Awaitable[Response]]
    request: type[msgspec.Struct] | None


ROUTES = (
    Route("GET", "/host/v1/report", HostRoutes.report, None),
    Route("PUT", MODEL, HostRoutes.place, PlaceRequest),
    Route("DELETE", MODEL, HostRoutes.remove, RemoveRequest),
    Route("POST", f"{MODEL}/wake", HostRoutes.wake, WakeRequest),
    Route("POST", f"{MODEL}/sleep", HostRoutes.sleep, SleepRequest),
    Route("POST", f"{MODEL}/pin", HostRoutes.pin, PinRequest),
)


def _guarded(endpoint: Endpoint, guard: Guard) -> Endpoint:
    async def route(request: Request) -> Response:
        try:
            _check_token(guard, request)
            return await endpoint(request)
        except RequestError as error:
            return error.answer
        except PlimsollError as error:
            return request_error(error).answer
        except ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        except Exception:
            logger.exception("%s %s failed", request.method, request.scope["route"].path)
            failed = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the host failed; see its log")
            return failed.answer

    return route


def _check_token(guard: Guard, request: Request) -> None:
    if not guard.lets_in(request.headers.get("authorization")):
        told = "give a valid token in the header 'Authorization: Bearer TOKEN'"
        raise RequestError(HTTPStatus.UNAUTHORIZED, "unauthorized", told, {"WWW-Authenticate": "Bearer"})


def _name(request: Request) -> ModelName:
    return ModelName.checked(request.path_params["namespace"], request.path_params["name"])


def _told(request: Request, operation: str, outcome: OperationStatus) -> Response:
    """Log the result of an operation and return its response."""
    state = "forgotten" if outcome.model is None else outcome.model.state
    logger.info("%s %s (operation %r): %s", request.method, request.url.path, operation[:256], state)
    return outcome_response(outcome)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method[:16]} {request.url.path[:200]}"
    status = HTTPStatus(error.status_code)
    told = {HTTPStatus.NOT_FOUND: "unknown path", HTTPStatus.METHOD_NOT_ALLOWED: "method not allowed"}
    code = told.get(status, status.phrase.lower())
    return RequestError(status, code.replace(" ", "_"), f"{code}: {where}", error.headers).answer
