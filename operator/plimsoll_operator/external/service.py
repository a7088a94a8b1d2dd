"""The four questions of KEDA, answered from what gateways said last.

Where a gateway is not heard a number would be too small, and KEDA would scale down by it: then there is none, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc

from plimsoll_operator.external.load import Load, Loads
from plimsoll_operator.external.question import METRIC, Question, QuestionError, read_question
from plimsoll_operator.external.wire import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from plimsoll_operator.scaling.book import GatewayBook
from plimsoll_operator.scaling.demand import Demand

Context = Any
"""grpc.aio's ServicerContext, which has no types."""


class ExternalScaler:
    """`book` is kept by somebody else, and tells of each answer; `clock` is the time of day."""

    def __init__(self, book: GatewayBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        self._loads = Loads(book)
        self._news = asyncio.Event()
        book.listen(self._told)

    async def is_active(self, reference: Any, context: Context) -> Any:
        """Whether the model is asked for, and so should have a replica at least."""
        question = await _read(reference, context)
        active = self._load(question).is_active(question.active_seconds)
        if not active and (unheard := self._unheard()):
            await _unavailable(context, unheard)
        return IsActiveResponse(result=active)

    async def stream_is_active(self, reference: Any, context: Context) -> AsyncIterator[Any]:
        """Says so each time that it begins to be. That it no longer is KEDA hears when it asks: another trigger of the
        same ScaledObject may still want the replica that it would take away.
        """
        question = await _read(reference, context)
        await context.send_initial_metadata(())  # so that who asks knows that it is listened to
        before = False
        while True:
            news = self._news
            active = self._load(question).is_active(question.active_seconds)
            if active and not before:
                yield IsActiveResponse(result=True)
            before = active
            await news.wait()

    async def get_metric_spec(self, reference: Any, context: Context) -> Any:
        """What the number is to be divided by."""
        question = await _read(reference, context)
        return GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName=METRIC, targetSizeFloat=question.target)])

    async def get_metrics(self, request: Any, context: Context) -> Any:
        """Requests that are there now: running, waiting at replicas, and held until there is one."""
        question = await _read(request.scaledObjectRef, context)
        if request.metricName != METRIC:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"there is no metric {request.metricName[:64]!r}, only {METRIC!r}"
            )
        if unheard := self._unheard():
            await _unavailable(context, unheard)
        value = MetricValue(metricName=METRIC, metricValueFloat=float(self._load(question).requests))
        return GetMetricsResponse(metricValues=[value])

    def handler(self) -> Any:
        """For a server of grpc.aio."""
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

    def _load(self, question: Question) -> Load:
        return self._loads.of(question.model, self._clock())

    def _unheard(self) -> str:
        return self._book.unheard(self._clock())

    def _told(self, address: str, before: Demand | None, answer: Demand) -> None:
        self._loads.told(answer)
        self._news.set()
        self._news = asyncio.Event()


async def _read(reference: Any, context: Context) -> Question:
    try:
        return read_question(reference.name, reference.namespace, reference.scalerMetadata)
    except QuestionError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


async def _unavailable(context: Context, unheard: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"not all requests are known of: {unheard}")
    raise AssertionError("abort raises")
