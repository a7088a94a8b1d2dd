"""Whether the operator is well: /live (a pass or a stand-by lately), /health (started), /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


async def serve_health(port: int, is_live: Callable[[], bool], is_started: Callable[[], bool]) -> web.AppRunner:
    """Listen until the runner that is returned is cleaned up."""

    async def live(_: web.Request) -> web.Response:
        return _answer(is_live(), "no pass has succeeded lately")

    async def health(_: web.Request) -> web.Response:
        return _answer(is_started(), "starting")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/live", live), web.get("/health", health), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _answer(well: bool, why_not: str) -> web.Response:
    return web.Response(text="ok\n") if well else web.Response(status=503, text=why_not + "\n")
