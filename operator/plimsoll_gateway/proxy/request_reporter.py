"""Reports requests that have ended: to the metrics, the access log, and to the tracer if traces are on."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_gateway.proxy.exchange import Exchange
from plimsoll_gateway.proxy.headers import PARENT, STATE
from plimsoll_gateway.telemetry.access_log import AccessEntry, AccessLog
from plimsoll_gateway.telemetry.metrics import Metrics
from plimsoll_gateway.telemetry.objective_counts import ObjectiveCounts
from plimsoll_gateway.telemetry.request_record import RequestRecord
from plimsoll_gateway.telemetry.request_spans import RequestSpans
from plimsoll_telemetry.server_span import HttpRequest
from plimsoll_telemetry.span import unix_offset_ns
from plimsoll_telemetry.trace_context import read_context
from plimsoll_telemetry.tracer import Tracer


class RequestReporter:
    """Begins the records of requests, and takes them when the requests have ended."""

    def __init__(self, metrics: Metrics, access_log: AccessLog, tracer: Tracer | None = None) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._objectives = ObjectiveCounts(metrics)
        self._tracer = tracer

    def begin(self, headers: Mapping[bytes, bytes]) -> RequestRecord:
        """Return the record of a request, in its caller's trace if the headers name a valid one."""
        parent = headers.get(PARENT)
        state = headers.get(STATE, b"").decode("latin-1")
        caller = None if parent is None else read_context(parent.decode("latin-1"), state)
        if self._tracer is None:
            return RequestRecord(trace_id=None if caller is None else caller.trace)
        span = self._tracer.sampler.begin(caller)
        return RequestRecord(span, 0 if caller is None else caller.span_id, span.trace)

    def ended(self, exchange: Exchange, code: int) -> None:
        """Report a request. Probes and the gateway's own pages are not requests of clients: nothing is counted."""
        if exchange.own:
            return
        record, model = exchange.record, exchange.model
        ended_ns = record.finish()
        self._metrics.answered(model, code)
        if exchange.key is not None:
            self._metrics.key_answered(exchange.key.name, code)
        error = exchange.stream.error
        if model is not None:
            self._objectives.ended(model, code, record, ended_ns, broke=error is not None and code < 400)
        if self._access_log.wants(code, broke=error is not None):
            self._access_log.write(
                AccessEntry(
                    exchange.scope["method"],
                    exchange.route,
                    code,
                    (ended_ns - record.phases.began_ns) / 1e9,
                    exchange.subject,
                    record,
                    error=error,
                    key=None if exchange.key is None else exchange.key.name,
                )
            )
        if self._tracer is not None and record.span is not None and record.span.sampled:
            request = HttpRequest(exchange.scope["method"], exchange.route, code, exchange.stream.request_id)
            key = None if model is None else model.key
            self._tracer.finish(RequestSpans(record, request, key, unix_offset_ns()))
