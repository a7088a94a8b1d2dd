"""Makes traces of the steps that engines have recorded."""

from __future__ import annotations

from plimsoll_runtime.api.telemetry.step_spans import StepSpans
from plimsoll_runtime.api.telemetry.traced_requests import TracedRequests
from plimsoll_runtime.engine.protocol.messages import EngineInfo, TracedStep
from plimsoll_telemetry.span import Attributes, SpanLink, unix_offset_ns
from plimsoll_telemetry.trace_context import TraceContext, new_span_id, new_trace_id
from plimsoll_telemetry.tracer import Tracer

MOST_LINKS = 32
"""Steps that a request's span links to at most; the spans of further steps still link to the request."""


class StepReporter:
    """Takes recorded steps. Each is a trace of its own, because a step computes several requests: its span links to
    those that are traced, and their spans to it. A step without any is subject to the sampler, like a request.
    """

    def __init__(self, tracer: Tracer, requests: TracedRequests) -> None:
        self._tracer = tracer
        self._requests = requests

    def report(self, step: TracedStep, info: EngineInfo, about: Attributes) -> None:
        """Report a step. Call it before the requests get the step's outputs, after which they may end. `about`:
        attributes of its model.
        """
        records = {record.request_id: record for name in step.request_ids if (record := self._requests.get(name))}
        found = [record for record in records.values() if record.span is not None]
        span = TraceContext(new_trace_id(), new_span_id(), sampled=True) if found else self._tracer.sampler.begin(None)
        if not span.sampled:
            return
        links = []
        for record in found:
            assert record.span is not None
            links.append(SpanLink(record.span.trace_id, record.span.span_id))
            if len(record.steps) < MOST_LINKS:
                record.steps.append(SpanLink(span.trace_id, span.span_id))
        self._tracer.finish(StepSpans(step, info, about, span, links, unix_offset_ns()))
