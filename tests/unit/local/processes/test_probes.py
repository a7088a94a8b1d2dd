from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from plimsoll_runtime.local.processes.probes import Health, State, ask_health
from plimsoll_runtime.utils.progress import Transfer


@pytest.mark.parametrize(
    ("status", "body", "health"),
    [
        (200, '{"status": "ready"}', Health(State.READY)),
        (200, "anything", Health(State.READY)),
        (503, '{"status": "loading", "stage": "weights", "fraction": 0.5}', Health(State.LOADING, "weights", 0.5)),
        (503, '{"status": "loading", "stage": null, "fraction": null}', Health(State.LOADING)),
        (
            503,
            '{"status": "loading", "stage": "download", "fraction": 0.25, "bytes": {"done": 5, "total": 20}}',
            Health(State.LOADING, "download", 0.25, Transfer(5, 20)),
        ),
        (
            503,
            '{"status": "loading", "stage": "download", "fraction": 0, "bytes": {"done": "5"}}',
            Health(State.LOADING, "download", 0.0),
        ),
        (503, '{"status": "draining"}', Health(State.UNREADY)),
        (503, "[]", Health(State.UNREADY)),
        (500, "not json", Health(State.UNREADY)),
    ],
)
async def test_what_is_answered(unused_tcp_port: int, status: int, body: str, health: Health) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    async with aiohttp.ClientSession() as session:
        assert await ask_health(session, f"http://127.0.0.1:{unused_tcp_port}/health") == health
    await runner.cleanup()


async def test_silence(unused_tcp_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        assert await ask_health(session, f"http://127.0.0.1:{unused_tcp_port}/health") == Health(State.SILENT)
