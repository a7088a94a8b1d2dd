"""The whole operator in this process, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from operator_support.apiserver import FIRST, RELEASE_NAMESPACE, ApiServer
from operator_support.recording import connect

from plimsoll_operator.controller.main import operate
from plimsoll_operator.controller.options import parse_options


@asynccontextmanager
async def running(server: ApiServer, namespace: str, *more: str) -> AsyncIterator[None]:
    """Run it for one namespace, with `more` arguments, as the first of the operator's accounts. Raise what ended it."""
    arguments = ["--runtime-image", "registry.example/runtime:1", "--namespace", namespace]
    arguments += ["--lease-namespace", RELEASE_NAMESPACE, "--health-port", "0"]
    options, stop = parse_options([*arguments, *more]), asyncio.Event()
    async with await connect(server.kubeconfig(FIRST)) as connection:
        task = asyncio.create_task(operate(options, connection, stop, ("test", FIRST)))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait({task})
    if task.result() != 0:
        raise RuntimeError("the operator has ended by itself; its log says why")
