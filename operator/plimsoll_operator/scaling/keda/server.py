"""Serves the four calls of KEDA's external scaler from the gateways' last reports.

If a gateway's report is missing, the number would be too small and KEDA would scale down. The calls then fail with the
reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp
import grpc

from plimsoll_operator.kube.health import ListenError
from plimsoll_operator.scaling.demand import Demand
from plimsoll_operator.scaling.gateways import GatewayRegistry
from plimsoll_operator.scaling.keda.messages import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from plimsoll_operator.scaling.keda.trigger import METRIC, Trigger, TriggerError, read_trigger
from plimsoll_operator.scaling.poller import DemandPoller, Gateways, connect_to
from plimsoll_operator.spec.identity import ObjectKey


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a model: `requests` in flight, of which some may wait for a replica. `idle`: seconds since the last
    request arrived, 0 while one is in flight; None if none is known.
    """

    requests: int = 0
    idle: float | None = None

    def is_active(self, seconds: float) -> bool:
        """Return whether a request is in flight, or came within this many seconds."""
        return self.requests > 0 or (self.idle is not None and self.idle <= seconds)


def load_of(registry: GatewayRegistry, model: ObjectKey, now: float) -> Load:
    """Return a model's load in the reports that count. Clocks need not agree, because each report has its own time."""
    requests, idle = 0, None
    for gateway in registry.counting(now):
        answer = gateway.answer
        entry = None if answer is None else answer.by_key.get(model)
        if entry is None or answer is None:
            continue
        requests += entry.in_flight
        if entry.last_asked is not None:
            since = max(0.0, answer.time - entry.last_asked) + now - gateway.heard
            idle = since if idle is None else min(idle, since)
    return Load(requests, 0.0 if requests else idle)


Context = Any
"""`grpc.aio.ServicerContext`, which has no type hints."""


class ExternalScaler:
    """The gRPC service. Another task adds the gateways' reports to `registry`, which then calls this object. `clock`
    returns seconds since the epoch.
    """

    def __init__(self, registry: GatewayRegistry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._news = asyncio.Event()
        registry.listen(self._told)

    async def is_active(self, reference: Any, context: Context) -> Any:
        """Return whether the model has requests, and so needs at least one replica."""
        trigger = await _read(reference, context)
        active = self._load(trigger).is_active(trigger.active_seconds)
        if not active and (unheard := self._unheard()):
            await _unavailable(context, unheard)
        return IsActiveResponse(result=active)

    async def stream_is_active(self, reference: Any, context: Context) -> AsyncIterator[Any]:
        """Send a response each time the model becomes active. KEDA polls for the end of the activity, because another
        trigger of the same ScaledObject may still need the replica.
        """
        trigger = await _read(reference, context)
        await context.send_initial_metadata(())  # tells the client that the stream is open
        before = False
        while True:
            news = self._news
            active = self._load(trigger).is_active(trigger.active_seconds)
            if active and not before:
                yield IsActiveResponse(result=True)
            before = active
            await news.wait()

    async def get_metric_spec(self, reference: Any, context: Context) -> Any:
        """Return the requests that a replica should have at a time. KEDA divides the metric by it to get replicas."""
        trigger = await _read(reference, context)
        return GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName=METRIC, targetSizeFloat=trigger.target)])

    async def get_metrics(self, request: Any, context: Context) -> Any:
        """Return the number of the model's requests in flight at the gateways: those that run or wait at replicas, and
        those that gateways hold until a replica is ready.
        """
        trigger = await _read(request.scaledObjectRef, context)
        if request.metricName != METRIC:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"no metric {request.metricName[:64]!r}; the only one is {METRIC!r}"
            )
        if unheard := self._unheard():
            await _unavailable(context, unheard)
        value = MetricValue(metricName=METRIC, metricValueFloat=float(self._load(trigger).requests))
        return GetMetricsResponse(metricValues=[value])

    def handler(self) -> Any:
        """Return the handler for a server of grpc.aio."""
        asks, one = ScaledObjectRef.FromString, grpc.unary_unary_rpc_method_handler
        methods = {
            "IsActive": one(self.is_active, asks, IsActiveResponse.SerializeToString),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self.stream_is_active, asks, IsActiveResponse.SerializeToString
            ),
            "GetMetricSpec": one(self.get_metric_spec, asks, GetMetricSpecResponse.SerializeToString),
            "GetMetrics": one(self.get_metrics, GetMetricsRequest.FromString, GetMetricsResponse.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _load(self, trigger: Trigger) -> Load:
        return load_of(self._registry, trigger.model, self._clock())

    def _unheard(self) -> str:
        return self._registry.unheard(self._clock())

    def _told(self, address: str, before: Demand | None, answer: Demand) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _read(reference: Any, context: Context) -> Trigger:
    try:
        return read_trigger(reference.name, reference.namespace, reference.scalerMetadata)
    except TriggerError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


async def _unavailable(context: Context, unheard: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"the number of requests is not known: {unheard}")
    raise AssertionError("abort raises")


MOST_CALLS = 4096
"""The most calls at a time; KEDA keeps a stream for each ScaledObject."""
MOST_BYTES = 64 << 10
"""The largest request of KEDA in bytes."""
GRACE_SECONDS = 1.0
_OPTIONS = (("grpc.max_receive_message_length", MOST_BYTES), ("grpc.so_reuseport", 0))


@asynccontextmanager
async def serving_scaler(scaler: ExternalScaler, address: str) -> AsyncIterator[int]:
    """Serve KEDA at HOST:PORT, and yield the port. Raise ListenError if the address cannot be used."""
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
async def external_scaler(gateways: Gateways, port: int, session: aiohttp.ClientSession) -> AsyncIterator[int]:
    """Poll the gateways in `session` and serve KEDA until the end of the block; yield the port.

    Raise ListenError if the port cannot be used.
    """
    registry = GatewayRegistry()
    scaler = ExternalScaler(registry, time.time)
    async with serving_scaler(scaler, f"[::]:{port}") as bound:
        poller = DemandPoller(registry, gateways, connect_to(session, gateways.port), clock=time.time)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(poller.run())
            yield bound
            asking.cancel()
