"""/metrics on a port of its own: scrapers reach it without reaching the API, and it needs no key."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.api.server.listener import HttpServer, listen
from plimsoll_telemetry.exposition import PATH, expose

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def metrics_listener(config: FrontConfig) -> Iterator[socket.socket | None]:
    """Listen on the port for metrics; None if they have none of their own. Raises AddressError."""
    if config.metrics_port is None:
        yield None
        return
    with listen(config.host, config.metrics_port, "--host or --metrics-port") as listener:
        logger.info("metrics on http://%s:%d%s", *listener.getsockname()[:2], PATH)
        yield listener


def metrics_response(registry: CollectorRegistry, request: Request) -> Response:
    """Return the response to a scrape, in the format that the request accepts."""
    body, content_type = expose(registry, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


def metrics_server(registry: CollectorRegistry) -> HttpServer:
    """Return a server of /metrics. It answers other paths with 404, and speaks plain HTTP whatever the API does."""

    async def metrics(request: Request) -> Response:
        return metrics_response(registry, request)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"This port serves GET {PATH} only.\n"
        return PlainTextResponse(text, status_code=error.status_code, headers=error.headers)

    app = Starlette(routes=[Route(PATH, metrics)], exception_handlers={HTTPException: refuse})
    app.router.redirect_slashes = False
    return HttpServer(app)
