"""Reports requests that have ended: to the metrics, and to the tracer if traces are on."""

from __future__ import annotations

from starlette.datastructures import Headers

from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.api.telemetry.request_content import RequestContent
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.request_spans import RequestSpans
from plimsoll_runtime.api.telemetry.traced_requests import TracedRequests
from plimsoll_telemetry.server_span import HttpRequest
from plimsoll_telemetry.span import unix_offset_ns
from plimsoll_telemetry.trace_context import TRACEPARENT, TRACESTATE, read_context
from plimsoll_telemetry.tracer import Tracer


class RequestReporter:
    """Begins the records of requests, and takes them when the requests have ended."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None = None, traced: TracedRequests | None = None) -> None:
        """`traced`: finds the running requests that are traced."""
        self.metrics = metrics
        self._tracer = tracer
        self._traced = TracedRequests() if traced is None else traced

    def begin(self, request_id: str, headers: Headers, *, reported: bool = True) -> RequestRecord:
        """Return the record of a request, in its caller's trace if the headers name a valid one. A request that is not
        `reported` when it ends takes no share of the traces.
        """
        caller = read_context(headers.get(TRACEPARENT), headers.get(TRACESTATE))
        if self._tracer is None or not reported:
            return RequestRecord(request_id, trace=None if caller is None else caller.trace)
        span = self._tracer.sampler.begin(caller)
        parent_id = 0 if caller is None else caller.span_id
        record = RequestRecord(request_id, trace=span.trace, span=span, parent_id=parent_id)
        if span.sampled:
            record.enter_engine = self._traced.add
            record.content = RequestContent() if self._tracer.content else None
        return record

    def ended(self, record: RequestRecord, method: str, route: str, code: int) -> None:
        """Report a request. `route` is never text of the client."""
        record.phases.end("respond")
        self.metrics.observe(record, route, code)
        for engine_id in record.engine_ids:
            self._traced.remove(engine_id)
        if self._tracer is not None and record.traced:
            request = HttpRequest(method, route, code, record.request_id)
            self._tracer.finish(RequestSpans(record, request, unix_offset_ns()))
