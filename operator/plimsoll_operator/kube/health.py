"""Serves the kubelet's probes and /metrics on one port.

/live: a reconcile has succeeded recently, or this operator is a standby. /health: this operator works, or sees another
one that does.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import REGISTRY

from plimsoll_telemetry.exposition import PATH, expose
from plimsoll_telemetry.process_metrics import BuildCollector, installed_version

REGISTRY.register(BuildCollector("operator", installed_version()))  # process_* series are there by default


class ListenError(Exception):
    """Cannot listen on the port; the message names it and the option that chooses another."""


async def serve_health(port: int, is_live: Callable[[], bool], trouble: Callable[[], str]) -> web.AppRunner:
    """Serve until the returned runner is cleaned up. `trouble` returns why no operator works, "" if one does.

    Raise ListenError.
    """

    async def live(_: web.Request) -> web.Response:
        return (
            web.Response(text="ok\n")
            if is_live()
            else web.Response(status=503, text="no reconcile has succeeded recently\n")
        )

    async def health(_: web.Request) -> web.Response:
        found = trouble()
        return web.Response(status=503, text=f"{found}\n") if found else web.Response(text="ok\n")

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = expose(REGISTRY, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/live", live), web.get("/health", health), web.get(PATH, metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        raise ListenError(f"cannot listen on port {port} ({error.strerror}); choose another --health-port") from error
    return runner
