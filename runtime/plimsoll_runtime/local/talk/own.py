"""A server of our own for as long as somebody talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from plimsoll_runtime.local.child import Child, Launch
from plimsoll_runtime.local.health import State, ask_health
from plimsoll_runtime.local.launch import SERVE
from plimsoll_runtime.local.ports import LOOPBACK, free_port
from plimsoll_runtime.local.talk.stream import AskError, Server
from plimsoll_runtime.utils.progress import TransferProgress

POLL_SECONDS = 0.1
STOP_SECONDS = 5.0


@asynccontextmanager
async def own_server(
    session: aiohttp.ClientSession,
    model: str,
    folder: Path,
    progress: TransferProgress,
) -> AsyncGenerator[Server, None]:
    """A server of `model`, once it is ready. Its log is in `folder`. Raises AskError where it does not come to that."""
    url = f"http://{LOOPBACK}:{(port := free_port())}"
    command = (*SERVE, model, "--host", LOOPBACK, "--port", str(port), "--drain-seconds", "0")
    try:
        child = await Child.start(Launch(command, url, folder / "serve.log", folder / "serve.reason"))
    except OSError as error:
        raise AskError(f"a server for {model} cannot be started: {error}") from error
    ended = asyncio.create_task(child.wait())
    try:
        await _until_ready(session, url, child, ended, progress)
        yield Server(url)
    finally:
        child.terminate()
        await asyncio.wait({ended}, timeout=STOP_SECONDS)
        child.kill()
        await ended


async def _until_ready(
    session: aiohttp.ClientSession,
    url: str,
    child: Child,
    ended: asyncio.Task[int],
    progress: TransferProgress,
) -> None:
    while True:
        await asyncio.wait({ended}, timeout=POLL_SECONDS)
        if ended.done():
            raise AskError(f"the server {child.why(ended.result())}")
        health = await ask_health(session, f"{url}/health")
        if health.state is State.READY:
            return
        if health.stage:
            progress(health.stage, health.fraction or 0.0, health.transfer)
