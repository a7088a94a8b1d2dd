"""An answer that has begun, on its way through: what the client does not take is not read either."""

from __future__ import annotations

import logging
import time

from plimsoll_gateway.client.errors import UpstreamError
from plimsoll_gateway.client.response import Answer
from plimsoll_gateway.demand.revision_totals import Pulse, Tally
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.refusals import Refusal, stream_broken, told_by_replica, upstream_failed
from plimsoll_gateway.proxy.headers import response_headers
from plimsoll_gateway.proxy.response_stream import Stream
from plimsoll_gateway.proxy.upstream_request import Call
from plimsoll_gateway.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MOST_ERROR_BYTES = 64 << 10


async def pipe(answer: Answer, model: Model, call: Call, stream: Stream, tally: Tally, metrics: Metrics) -> None:
    """Send a replica's answer through `stream`, one piece at a time. Raises Refusal where it is none that fits.

    Where the head of a stream is out already, only events follow.
    """
    events, meter = answer.is_event_stream, call.meter
    pulse = Pulse(tally, call.came) if events else None
    if stream.status is None and answer.is_whole and not events:
        await _send_whole(answer, call, stream)
        return
    if stream.status is None:
        await stream.start(answer.status, response_headers(answer.headers, call.request_id), events=events)
    elif answer.status != 200 or not events:
        raise await _error_of(answer, call.model_name)
    if meter is not None:
        meter.begin(answer.status)
    while True:
        try:
            chunk = await answer.read()
        except UpstreamError as error:
            reason = str(error) or type(error).__name__
            log.warning("%s: the answer of %s broke off: %s", call.request_id, model.key, reason)
            metrics.of(model.key, metrics.broken_streams).inc()
            tally.broke()
            await stream.fail(stream_broken(call.model_name, "its replica went away"))
            return
        if not chunk:
            break
        if pulse is not None:
            pulse.passed(chunk, time.monotonic())
        if meter is not None:
            meter.read(chunk, events=events)
        await stream.push(chunk)
    await stream.finish()


async def _send_whole(answer: Answer, call: Call, stream: Stream) -> None:
    """In one piece."""
    body = await answer.read()
    if call.meter is not None:
        call.meter.begin(answer.status)
        call.meter.read(body, events=False)
    await stream.start(answer.status, response_headers(answer.headers, call.request_id), whole=True)
    await stream.finish(body)


async def _error_of(answer: Answer, name: str) -> Refusal:
    """What to say within the stream instead of an answer that is none."""
    text = b""
    try:
        while len(text) < MOST_ERROR_BYTES and (chunk := await answer.read()):
            text += chunk
    except UpstreamError as error:
        return upstream_failed(name, f"its answer broke off: {error or type(error).__name__}")
    return told_by_replica(name, answer.status, text)
