"""The operator as it is started, on a real API server, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from operator_support.apiserver import FIRST, RELEASE_NAMESPACE, ApiServer
from operator_support.recording import connect

from plimsoll_cluster.source import follow
from plimsoll_operator.api import Api
from plimsoll_operator.main import Operator
from plimsoll_operator.options import parse_options


@asynccontextmanager
async def running(server: ApiServer, namespace: str, *more: str) -> AsyncIterator[None]:
    """Runs for one namespace, with `more` arguments, as the first of the operator's accounts. Raises what ended it."""
    arguments = ["--runtime-image", "registry.example/runtime:1", "--namespace", namespace]
    options = parse_options([*arguments, "--lease-namespace", RELEASE_NAMESPACE, *more])
    async with await connect(server.kubeconfig(FIRST)) as connection:
        operator = Operator(options, Api(connection), partial(follow, connection), "test", FIRST)
        task = asyncio.create_task(operator.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await operator.lease.release()
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
