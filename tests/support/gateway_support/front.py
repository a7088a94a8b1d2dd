"""A gateway on a separate socket: alone, or in front of a server that a test runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from plimsoll_gateway.admission.limits import Limits
from plimsoll_gateway.app import Gateway
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.pages.operations import Operations
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.server.connection_guard import ConnectionGuard


@asynccontextmanager
async def serve_asgi(
    app: Gateway | Operations, protocol: type[ConnectionGuard] = ConnectionGuard
) -> AsyncIterator[str]:
    """Serve an application with uvicorn, without its process machinery; yields the URL."""
    config = uvicorn.Config(app, access_log=False, log_config=None, server_header=False, ws="none", lifespan="off")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@asynccontextmanager
async def gateway_before(url: str, names: Sequence[str], files: str = "", **options: Any) -> AsyncIterator[str]:
    """Serve a gateway whose only replica is at `url` with these served names; yields its URL. `options` are
    Gateway's. `files`: the claim for the replica's files.
    """
    store = TableStore()
    replica = Replica("r", url, ready=True, files=files)
    model = Model(ObjectKey("ns", names[0]), tuple(names), 1_700_000_000.0, "", (replica,), files=files)
    store.replace(build_table([model]))
    async with Pool() as pool, serve_asgi(Gateway(pool, store, Picker(), Limits(), **options)) as front:
        yield front
