"""The spans of one request in the gateway, made from its record once it has ended."""

from __future__ import annotations

from plimsoll_gateway.discovery.routing_table import ObjectKey
from plimsoll_gateway.telemetry.request_record import ATTEMPT, Attempt, RequestRecord
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phase
from plimsoll_telemetry.span import AttributeValue, Span, SpanEvent, SpanKind
from plimsoll_telemetry.trace_context import new_span_id


class RequestSpans:
    """Makes the spans of one request: the request itself and its phases. A phase in which a replica was asked is the
    parent of that replica's spans.

    `route` is a path of the API, never text of the client. `offset_ns` turns the monotonic clock into Unix time.
    """

    def __init__(
        self,
        record: RequestRecord,
        method: str,
        route: str,
        status: int,
        request_id: str,
        model: ObjectKey | None,
        ended_ns: int,
        offset_ns: int,
    ) -> None:
        self._record = record
        self._method = names.method_of(method)
        self._route = route
        self._status = status
        self._request_id = request_id
        self._model = model
        self._ended_ns = ended_ns
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        context = self._record.span
        assert context is not None
        request = Span(
            names.request_name(self._method, self._route),
            context.trace_id,
            context.span_id,
            self._record.parent_id,
            self._record.phases.began_ns + self._offset_ns,
            self._ended_ns + self._offset_ns,
            self._attributes(),
            SpanKind.SERVER,
            error=f"status {self._status}" if self._status >= 500 else None,
            state=context.state,
        )
        attempts = iter(self._record.attempts)
        spans = [request]
        for phase in self._record.phases.all():
            attempt = next(attempts, None) if phase.name == ATTEMPT else None
            spans.append(self._of_phase(request, phase, attempt))
        return spans

    def _attributes(self) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {
            names.METHOD: self._method,
            names.ROUTE: self._route,
            names.STATUS: self._status,
            names.REQUEST_ID: self._request_id,
        }
        if (operation := names.operation_of(self._route)) is not None:
            found |= {names.PROVIDER: names.PROVIDER_NAME, names.OPERATION: operation}
        if self._model is not None:
            found |= {names.NAMESPACE: self._model.namespace, names.MODEL: self._model.name}
        return found

    def _of_phase(self, request: Span, phase: Phase, attempt: Attempt | None) -> Span:
        span = Span(
            phase.name,
            request.trace_id,
            new_span_id(),
            request.span_id,
            phase.start_ns + self._offset_ns,
            phase.end_ns + self._offset_ns,
            {names.REASON: reason} if (reason := self._record.reasons.get(phase.name)) is not None else {},
            state=request.state,
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
        failed = f"status {attempt.status}" if attempt.status is not None and attempt.status >= 500 else None
        return span._replace(
            span_id=attempt.span.span_id,
            attributes=found,
            kind=SpanKind.CLIENT,
            events=events,
            error=attempt.failure or failed,
        )
