"""The HTTP application of a server (routes, errors), and its parts that face clients."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from plimsoll_runtime.api.batches.endpoint import BatchService, batch_routes
from plimsoll_runtime.api.chat.endpoint import chat
from plimsoll_runtime.api.endpoints.completions import completions
from plimsoll_runtime.api.endpoints.embeddings import embeddings
from plimsoll_runtime.api.endpoints.messages import count_tokens, messages
from plimsoll_runtime.api.endpoints.models import list_models, show_model
from plimsoll_runtime.api.endpoints.scoring import classify, rerank, score
from plimsoll_runtime.api.endpoints.tokenize import detokenize, tokenize
from plimsoll_runtime.api.http.concurrency import CLIENT_GONE, ClientGoneError, first
from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError, dialect_of, json_response
from plimsoll_runtime.api.model_directory import Handler, ModelTable, Route
from plimsoll_runtime.api.openapi.document import document, not_offered
from plimsoll_runtime.api.openapi.html import POLICY, page
from plimsoll_runtime.api.openapi.welcome import root
from plimsoll_runtime.api.responses.background import Background
from plimsoll_runtime.api.responses.endpoint import response_routes
from plimsoll_runtime.api.responses.store import ResponseStore
from plimsoll_runtime.api.server.access import ROOT, Access
from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.api.server.credentials import ApiKeys, Gateways, Tenants
from plimsoll_runtime.api.server.limits import BodyLimits
from plimsoll_runtime.api.server.listener import HttpServer
from plimsoll_runtime.api.server.metrics_server import metrics_response, metrics_server
from plimsoll_runtime.api.server.state import Phase, ServerState
from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.request_reporter import RequestReporter
from plimsoll_runtime.api.telemetry.start_reporter import StartReporter
from plimsoll_runtime.api.telemetry.step_reporter import StepReporter
from plimsoll_runtime.api.telemetry.traced_requests import TracedRequests
from plimsoll_runtime.options import ResponseBounds
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils.process_exit import INTERRUPTED, write_last_words
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.version import VERSION
from plimsoll_telemetry.exposition import PATH
from plimsoll_telemetry.log_format import Component
from plimsoll_telemetry.logs import begin_log
from plimsoll_telemetry.process_metrics import process_collectors
from plimsoll_telemetry.tracer import Tracer

logger = logging.getLogger(__name__)

MODEL_ROUTES: tuple[Route, ...] = (
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{name:path}", show_model),
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/embeddings", embeddings),
    ("POST", "/v1/score", score),
    ("POST", "/v1/rerank", rerank),
    ("POST", "/v2/rerank", rerank),
    ("POST", "/v1/classify", classify),
    ("POST", "/v1/messages", messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
)


def build_app(
    state: ServerState,
    collectors: Iterable[Collector] = (),
    store: ResponseStore | None = None,
    batches: BatchService | None = None,
    limits: BodyLimits | None = None,
    tracer: Tracer | None = None,
    traced: TracedRequests | None = None,
    metrics: Metrics | None = None,
    *,
    metrics_apart: bool = False,
) -> ASGIApp:
    """Return the whole application of one server. The routes of its models are admitted only while the state is ready.

    `store` stores responses, in memory by default. `batches` are the routes of a server with files. `limits` are the
    largest bodies, if they differ from the defaults. `tracer` is None if traces are off; `traced` finds the running
    requests that are traced. `metrics` are new ones by default; `collectors` and the tracer's add to them.
    `metrics_apart`: another port serves /metrics.
    """
    app = FastAPI(title="Plimsoll runtime", redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)
    metrics = metrics or Metrics(state)
    for collector in collectors:
        metrics.registry.register(collector)
    if tracer is not None:
        metrics.registry.register(tracer)
    reporter = RequestReporter(metrics, tracer, traced)
    store = store or ResponseStore(ResponseBounds())
    background = Background(store, state, reporter.ended)
    state.at_end(background.close)
    state.at_end(store.close)
    routes = (*MODEL_ROUTES, *response_routes(store, background), *batch_routes(batches or BatchService()))
    for method, path, handler in routes:
        app.add_api_route(path, _with_models(handler, state), methods=_methods(method), response_model=None)
    _add_probes(app, state)
    if not metrics_apart:
        _add_metrics(app, metrics)
    _add_document(app, state)
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGoneError, _answer_gone)
    return Access(app, state, reporter, limits or BodyLimits())


def _with_models(handler: Handler, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        record: RequestRecord = request.scope["plimsoll.record"]
        try:
            return await handler(request, state.require_models(), record)
        except (ApiError, ClientGoneError, HTTPException):
            raise
        except Exception:
            logger.exception("request %s failed", record.request_id)
            message = f"The server failed; see its log for request {record.request_id}."
            error = ApiError(message, status=HTTPStatus.INTERNAL_SERVER_ERROR)
            return dialect_of(request.scope).response(error)

    return route


def _add_probes(app: FastAPI, state: ServerState) -> None:
    async def health(_request: Request) -> Response:
        ready = state.phase is Phase.READY and not state.recovering
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(state.report, status, {} if ready else {"Retry-After": str(RETRY_AFTER)})

    async def live(_request: Request) -> Response:
        """Return whether the process is alive: not once its engine is dead, which also ends the process soon."""
        if state.phase is Phase.FAILED:
            return json_response(state.report, HTTPStatus.SERVICE_UNAVAILABLE)
        return json_response({"status": "live"})

    async def version(_request: Request) -> Response:
        return json_response({"version": VERSION})

    probes = (("/health", health), ("/live", live), ("/version", version))
    for path, probe in probes:
        app.add_api_route(path, probe, methods=_methods("GET"), response_model=None)


def _add_metrics(app: FastAPI, metrics: Metrics) -> None:
    async def show_metrics(request: Request) -> Response:
        return metrics_response(metrics.registry, request)

    app.add_api_route(PATH, show_metrics, methods=_methods("GET"), response_model=None)


def _add_document(app: FastAPI, state: ServerState) -> None:
    described = document()
    shown = page(described)

    async def openapi(_request: Request) -> Response:
        return json_response(described)

    async def docs(_request: Request) -> Response:
        return HTMLResponse(shown, headers={"Content-Security-Policy": POLICY})

    for path, answer in (("/openapi.json", openapi), ("/docs", docs), (ROOT, root(state))):
        app.add_api_route(path, answer, methods=_methods("GET"), response_model=None)


def _methods(method: str) -> list[str]:
    return ["GET", "HEAD"] if method == "GET" else [method]


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return dialect_of(request.scope).response(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer unknown paths and methods; for a known API that is not offered, say so."""
    assert isinstance(error, HTTPException)
    where = f"{request.method[:16]} {request.url.path[:200]}"
    if error.status_code == HTTPStatus.NOT_FOUND and (what := not_offered(request.url.path)) is not None:
        missing = ApiError(
            f"{what}: not offered by this server ({where}).", status=HTTPStatus.NOT_FOUND, code="not_offered"
        )
        return dialect_of(request.scope).response(missing)
    told = {
        HTTPStatus.NOT_FOUND: f"Unknown path: {where}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"Method not allowed: {where}.",
    }.get(HTTPStatus(error.status_code), str(error.detail))
    refused = ApiError(told, status=error.status_code, headers=error.headers)
    return dialect_of(request.scope).response(refused)


async def _answer_gone(_request: Request, _error: Exception) -> Response:
    """Return a response for the log; the client is gone."""
    return Response(status_code=CLIENT_GONE)


class HttpFront:
    """The server's state, the HTTP server of its application, that of its metrics, and its batch worker."""

    def __init__(
        self,
        config: FrontConfig,
        component: str,
        names: tuple[str, ...] = (),
        deployment: ModelName | None = None,
        collectors: Iterable[Collector] = (),
    ) -> None:
        """`component` is the word for this program in its metrics. `names` and `deployment` are those of the only
        model; empty if there are several models. `collectors` add to the metrics. Raises UsageError for invalid
        options."""
        self.state = ServerState(
            names,
            ApiKeys(config.api_keys, config.api_key_file),
            Tenants(shared=config.share_prefix_cache),
            Gateways(config.gateway_tokens, config.gateway_token_file),
            deployment=deployment,
        )
        self.stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._drain_seconds = config.drain_seconds
        self._batches = BatchService(config.batches)
        self.state.at_end(self._batches.stop)
        store = ResponseStore(config.response_bounds, config.response_store)
        collectors = (*collectors, self._batches.lines, *process_collectors(component, VERSION))
        tracer, traced = config.tracing.start(), TracedRequests()
        apart = config.metrics_port is not None
        metrics = Metrics(self.state, config.metrics_names.split(","))
        app = build_app(
            self.state,
            collectors,
            store,
            self._batches,
            config.body_limits,
            tracer,
            traced,
            metrics,
            metrics_apart=apart,
        )
        if tracer is not None:
            self.state.steps, self.state.starts = StepReporter(tracer, traced), StartReporter(tracer)
            self.state.at_end(partial(in_daemon_thread, tracer.close))
        self.http = HttpServer(app, config.listener_options)
        self._pages = metrics_server(metrics.registry) if apart else None

    async def serve(self, api: socket.socket, metrics: socket.socket | None) -> None:
        """Serve the API and, if they have a port of their own, the metrics, until `end`."""
        serving = [self.http.serve(sockets=[api])]
        if self._pages is not None and metrics is not None:
            serving.append(self._pages.serve(sockets=[metrics]))
        await asyncio.gather(*serving)

    def end(self) -> None:
        """End `serve`."""
        self.http.should_exit = True
        if self._pages is not None:
            self._pages.should_exit = True

    def ready(self, models: ModelTable) -> None:
        """Accept requests for these models, and start the batch worker."""
        self.state.ready(models)
        self._batches.start(models, lambda: self.state.in_flight)

    def stop(self) -> None:
        """Start to drain; a second call ends the server without waiting."""
        if self.stopping.is_set():
            self._stop_now.set()
        self.stopping.set()

    async def drain(self, *ends: asyncio.Task[None]) -> int:
        """Refuse new requests, stop the batch worker, and wait for requests in flight: at most the drain time, or until
        one of `ends` is done. Return the exit code: 0, or INTERRUPTED after a second `stop`."""
        self.state.phase = Phase.DRAINING
        await self._batches.stop()
        logger.info("draining: %d requests in flight, at most %g s", self.state.in_flight, self._drain_seconds)
        await self.until_idle(self._drain_seconds, *ends)
        if self._stop_now.is_set():
            self.http.force_exit = True
            return INTERRUPTED
        if self.state.in_flight and not any(task.done() for task in ends):
            logger.warning("%d requests did not end within the drain time and are aborted", self.state.in_flight)
        return 0

    async def until_idle(self, seconds: float, *ends: asyncio.Task[None]) -> None:
        """Wait until no request is in flight: at most `seconds`, until a second `stop`, or until one of `ends`."""
        await first(self.state.idle.wait(), asyncio.sleep(seconds), self._stop_now.wait(), *ends)


def run_process(config: FrontConfig, component: Component, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run the process of a server, member or host; return its exit code. Write an error to the termination log and
    re-raise it."""
    begin_log(config.listener_options.log_format, component)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        return asyncio.run(main())
    except Exception as error:
        write_last_words(config.termination_log, error)
        raise
