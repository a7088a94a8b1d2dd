"""Forwards a response that has begun, no faster than the client reads it."""

from __future__ import annotations

import logging
import time

from plimsoll_gateway.client.errors import UpstreamError, text_of
from plimsoll_gateway.client.response import Response
from plimsoll_gateway.demand.revision_totals import Pulse, RevisionTotals
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.refusals import Refusal, stream_broken, told_by_replica, upstream_failed
from plimsoll_gateway.proxy.headers import response_headers
from plimsoll_gateway.proxy.response_stream import ResponseStream
from plimsoll_gateway.proxy.upstream_request import Call
from plimsoll_gateway.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MOST_ERROR_BYTES = 64 << 10


async def pipe(
    response: Response, model: Model, call: Call, stream: ResponseStream, totals: RevisionTotals, metrics: Metrics
) -> None:
    """Send a replica's response through `stream`, chunk by chunk. Raises Refusal if it cannot continue a stream that
    has begun.
    """
    events, meter = response.is_event_stream, call.meter
    pulse = call.record.times = Pulse(totals, call.came) if events else None
    if stream.status is None and response.is_whole and not events:
        await _send_whole(response, call, stream)
        return
    if stream.status is None:
        await stream.start(response.status, response_headers(response.headers, call.request_id), events=events)
    elif response.status != 200 or not events:
        raise await _error_of(response, call.model_name)
    if meter is not None:
        meter.begin(response.status)
    while True:
        try:
            chunk = await response.read()
        except UpstreamError as error:
            reason = text_of(error)
            log.warning("the response of %s ended early: %s", model.key, reason)
            metrics.of(model.key, metrics.broken_streams).inc()
            totals.broke()
            await stream.fail(stream_broken(call.model_name, "its replica disconnected"))
            return
        if not chunk:
            break
        if pulse is not None:
            pulse.passed(chunk, time.monotonic())
        if meter is not None:
            meter.read(chunk, events=events)
        await stream.push(chunk)
    await stream.finish()


async def _send_whole(response: Response, call: Call, stream: ResponseStream) -> None:
    """Send a complete response at once."""
    body = b""
    while piece := await response.read():
        body += piece
    if call.meter is not None:
        call.meter.begin(response.status)
        call.meter.read(body, events=False)
    await stream.start(response.status, response_headers(response.headers, call.request_id))
    await stream.finish(body)


async def _error_of(response: Response, name: str) -> Refusal:
    """Return the error for a stream that has begun, from a response that is not a stream."""
    text = b""
    try:
        while len(text) < MOST_ERROR_BYTES and (chunk := await response.read()):
            text += chunk
    except UpstreamError as error:
        return upstream_failed(name, f"its response ended early: {text_of(error)}")
    return told_by_replica(name, response.status, text)
