"""The spans of one request in the gateway, made from its record once it has ended."""

from __future__ import annotations

from plimsoll_gateway.discovery.routing_table import ObjectKey
from plimsoll_gateway.telemetry.request_record import ATTEMPT, Attempt, RequestRecord
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phase
from plimsoll_telemetry.server_span import HttpRequest, error_of, server_span
from plimsoll_telemetry.span import AttributeValue, Span, SpanEvent, SpanKind


class RequestSpans:
    """Makes the spans of one request: the request itself and its phases. A phase in which a replica was asked is the
    parent of that replica's spans.

    `offset_ns` turns the monotonic clock into Unix time.
    """

    def __init__(self, record: RequestRecord, request: HttpRequest, model: ObjectKey | None, offset_ns: int) -> None:
        self._record = record
        self._request = request
        self._model = model
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        record, model = self._record, self._model
        assert record.span is not None
        about = {} if model is None else {names.NAMESPACE: model.namespace, names.MODEL: model.name}
        request = server_span(self._request, record.span, record.parent_id, record.phases, self._offset_ns, about)
        attempts = iter(record.attempts)
        spans = [request]
        for phase in record.phases.all():
            attempt = next(attempts, None) if phase.name == ATTEMPT else None
            spans.append(self._of_phase(request, phase, attempt))
        return spans

    def _of_phase(self, request: Span, phase: Phase, attempt: Attempt | None) -> Span:
        reason = self._record.reasons.get(phase.name)
        span = request.child(
            phase.name,
            phase.start_ns + self._offset_ns,
            phase.end_ns + self._offset_ns,
            {} if reason is None else {names.REASON: reason},
        )
        if attempt is None or attempt.span is None:
            return span
        found: dict[str, AttributeValue] = {names.REPLICA: attempt.replica}
        if (number := self._record.attempts.index(attempt)) > 0:
            found[names.RESEND] = number
        if attempt.status is not None:
            found[names.STATUS] = attempt.status
        if attempt.failure is not None:
            found[names.ERROR_TYPE] = attempt.failure
        events = []
        if attempt.headers_ns is not None:
            events.append(SpanEvent("response begins", attempt.headers_ns + self._offset_ns))
        return span._replace(
            span_id=attempt.span.span_id,
            attributes=found,
            kind=SpanKind.CLIENT,
            events=events,
            error=attempt.failure or error_of(attempt.status),
        )
