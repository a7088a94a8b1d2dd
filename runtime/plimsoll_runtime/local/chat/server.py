"""Finds the server for a chat: a URL, a model that runs on this machine, or a new server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from plimsoll_runtime.local.chat.conversation import AskError, Server, names
from plimsoll_runtime.local.processes.child import Child, Launch
from plimsoll_runtime.local.processes.launch import LOOPBACK, SERVE, free_port
from plimsoll_runtime.local.processes.probes import State, ask_health
from plimsoll_runtime.local.run_folder import all_runs
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
    """Start a server of `model`, and yield it once it is ready. Its log is in `folder`. Raises AskError if it does not
    become ready.
    """
    url = f"http://{LOOPBACK}:{(port := free_port())}"
    command = (*SERVE, model, "--host", LOOPBACK, "--port", str(port), "--drain-seconds", "0")
    try:
        child = await Child.start(Launch(command, url, folder / "serve.log", folder / "serve.reason"))
    except OSError as error:
        raise AskError(f"cannot start a server for {model}: {error}") from error
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


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and the model's name on it."""

    server: Server
    model: str


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """What the user asked for: a `model` (a name, or a source to serve), a `url`, both or none."""

    model: str | None
    url: str | None


async def find(
    wish: ServerRequest, session: aiohttp.ClientSession, stack: AsyncExitStack, progress: TransferProgress
) -> Place:
    """Return the server and model that the user chose: at a URL, in a running `plimsoll up`, or in a new server, which
    stops when `stack` closes. Raises AskError.
    """
    key = first_key(os.environ)
    if wish.url is not None:
        server = Server(wish.url.rstrip("/").removesuffix("/v1"), key)
        return Place(server, _chosen(wish.model, await names(session, server), server))
    if wish.model is not None and wish.model.startswith(("http://", "https://")):
        raise AskError(f"{wish.model!r} is a URL, not a model; use --url {wish.model}")
    for run in all_runs():
        record = run.read()
        if record is None:
            continue
        server = Server(record["url"], key)
        offered = await names(session, server)
        if offered and wish.model in (None, *offered):
            return Place(server, _chosen(wish.model, offered, server))
    if wish.model is None:
        raise AskError(
            "no `plimsoll up` is running; name a model (demo://gemma-3-270m), give --url, or start `plimsoll up FILE`"
        )
    if not _is_source(wish.model):
        raise AskError(
            f"no running `plimsoll up` serves {wish.model!r}; to start a model, give a folder, a .gguf file, "
            "demo://gemma-3-270m or hf://ORG/NAME"
        )
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="plimsoll-")))
    own = await stack.enter_async_context(own_server(session, wish.model, folder, progress))
    return Place(own, _chosen(None, await names(session, own), own))


def _chosen(model: str | None, offered: Sequence[str], server: Server) -> str:
    if not offered:
        raise AskError(f"{server.url} serves no model")
    if model is None:
        return offered[0]
    if model not in offered:
        raise AskError(f"{server.url} has no model {model!r}; choose one of: {', '.join(offered)}")
    return model


def _is_source(model: str) -> bool:
    """Return whether `model` is a source of weights, not a served name."""
    return "://" in model or model.endswith(".gguf") or Path(model).exists() or model.count("/") == 1


def first_key(environment: Mapping[str, str]) -> str | None:
    """Return the first API key in PLIMSOLL_API_KEY, or None."""
    keys = environment.get("PLIMSOLL_API_KEY", "")
    return next((key.strip() for key in keys.split(",") if key.strip()), None)
