"""The external scaler of one operator: it asks all gateways by itself, whoever holds the Lease.

So each operator behind the Service answers alike, and with the API server or the leader gone it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from plimsoll_operator.external.service import ExternalScaler
from plimsoll_operator.listening import ListenError
from plimsoll_operator.pools.client import host_session
from plimsoll_operator.scaling.book import GatewayBook
from plimsoll_operator.scaling.options import Gateways
from plimsoll_operator.scaling.poller import DemandPoller, connect_to

MOST_CALLS = 4096
"""At a time; KEDA keeps a stream for each ScaledObject."""
MOST_BYTES = 64 << 10
"""Of a question."""
GRACE_SECONDS = 1.0
_OPTIONS = (("grpc.max_receive_message_length", MOST_BYTES), ("grpc.so_reuseport", 0))


@asynccontextmanager
async def serving_scaler(scaler: ExternalScaler, address: str) -> AsyncIterator[int]:
    """Answer KEDA at HOST:PORT; yields the port. Raises ListenError."""
    server = grpc.aio.server(maximum_concurrent_rpcs=MOST_CALLS, options=_OPTIONS)
    server.add_generic_rpc_handlers([scaler.handler()])
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {address}; choose another --external-scaler-port") from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(GRACE_SECONDS)


@asynccontextmanager
async def external_scaler(gateways: Gateways, port: int) -> AsyncIterator[int]:
    """Ask the gateways, and answer KEDA, until the end of the block; yields the port. Raises ListenError."""
    book = GatewayBook()
    scaler = ExternalScaler(book, time.time)
    async with serving_scaler(scaler, f"[::]:{port}") as bound, host_session() as session:
        poller = DemandPoller(book, gateways, connect_to(session, gateways.port), clock=time.time)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(poller.run())
            yield bound
            asking.cancel()
