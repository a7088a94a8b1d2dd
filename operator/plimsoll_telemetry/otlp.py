"""Sends spans by OTLP, over HTTP or gRPC, with OpenTelemetry's exporters; they read endpoint, headers, certificates and
timeouts from the OTEL_* variables.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter as OpenTelemetryExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as Kind
from opentelemetry.trace.status import Status, StatusCode

from plimsoll_telemetry.span import Span, SpanKind
from plimsoll_telemetry.tracer import SendError

_KINDS = {SpanKind.INTERNAL: Kind.INTERNAL, SpanKind.SERVER: Kind.SERVER, SpanKind.CLIENT: Kind.CLIENT}
_SCOPE = InstrumentationScope("plimsoll")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """Encodes spans and sends them."""

    def __init__(self, protocol: str, service: str, facts: Mapping[str, str]) -> None:
        self._resource = Resource.create({"service.name": service, **facts}).merge(OTELResourceDetector().detect())
        self._exporter = _of(protocol)
        self._words = _LastWords()

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans. Raises SendError."""
        self._words.begin()
        try:
            result = self._exporter.export([self._encoded(span) for span in spans])
        except Exception as error:
            raise SendError(f"{type(error).__name__}: {error}") from error
        if result is not SpanExportResult.SUCCESS:
            raise SendError(self._words.text())

    def _encoded(self, span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else None
        parent = SpanContext(span.trace_id, span.parent_id, is_remote=False, trace_flags=_SAMPLED)
        return ReadableSpan(
            span.name,
            context=SpanContext(span.trace_id, span.span_id, False, _SAMPLED, state),
            parent=parent if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, event.at_ns) for event in span.events],
            links=[Link(SpanContext(link.trace_id, link.span_id, False)) for link in span.links],
            kind=_KINDS[span.kind],
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )


def _of(protocol: str) -> OpenTelemetryExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()


class _LastWords(logging.Handler):
    """Keeps what OpenTelemetry's exporters log, for our own warning: they log each failure, several times a minute.

    They also suppress repeated messages. So if an attempt logs nothing, the messages of an earlier one stay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._words: list[str] = []
        self._ended = False
        theirs = logging.getLogger("opentelemetry")
        theirs.propagate = False
        theirs.handlers = [self]

    def begin(self) -> None:
        """Replace the messages by those of the attempt that begins, as soon as it logs one."""
        self._ended = True

    def text(self) -> str:
        """Return the last two messages: the last one names the error, or says that retries of the other have ended."""
        return "; ".join(self._words[-2:]) or "the collector refused them"

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        if self._ended:
            self._words, self._ended = [], False
        self._words.append(record.getMessage()[:300])
