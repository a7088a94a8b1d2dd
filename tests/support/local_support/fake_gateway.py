"""A fake gateway whose responses are defined by tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeGateway:
    """Reports a model as ready after `unready` requests, and sends the configured responses."""

    def __init__(self) -> None:
        self.url = ""
        self.unready = 0
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.answer: Handler
        self.names = ["org/m"]

    async def model(self, request: web.Request) -> web.Response:
        self.unready -= 1
        return web.json_response({"ready": self.unready < 0})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.names]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.json(), request.headers.get("authorization")))
        return await self.answer(request)


@asynccontextmanager
async def fake_gateway(port: int) -> AsyncIterator[FakeGateway]:
    """Start a fake gateway on this port."""
    made = FakeGateway()
    app = web.Application()
    app.router.add_get("/v1/models/{name:.+}", made.model)
    app.router.add_get("/v1/models", made.models)
    app.router.add_post("/v1/chat/completions", made.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


def events(*parts: str) -> Handler:
    """Return a handler that streams these events."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(f"data: {part}\n\n".encode())
        return response

    return answer


def delta(text: str | None) -> str:
    """Return an event with this text."""
    return json.dumps({"choices": [{"delta": {"content": text}}]})
