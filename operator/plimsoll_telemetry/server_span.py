"""The span of one HTTP request in a process that answers it, the same in gateway and runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phases
from plimsoll_telemetry.span import Attributes, AttributeValue, Span, SpanKind, SpanLink
from plimsoll_telemetry.trace_context import TraceContext


class HttpRequest(NamedTuple):
    """A request that has ended. `route` is never text of the client; `status` is what it was answered."""

    method: str
    route: str
    status: int
    request_id: str


def server_span(
    request: HttpRequest,
    context: TraceContext,
    parent_id: int,
    phases: Phases,
    offset_ns: int,
    attributes: Attributes,
    links: Sequence[SpanLink] = (),
) -> Span:
    """Return the span of a request, which lasts as long as its phases. `offset_ns` turns the monotonic clock into Unix
    time. `attributes` are added to those that all requests have.
    """
    method = names.method_of(request.method)
    common: dict[str, AttributeValue] = {
        names.METHOD: method,
        names.ROUTE: request.route,
        names.STATUS: request.status,
        names.REQUEST_ID: request.request_id,
    }
    if (operation := names.operation_of(request.route)) is not None:
        common |= {names.PROVIDER: names.PROVIDER_NAME, names.OPERATION: operation}
    return Span(
        names.request_name(method, request.route),
        context.trace_id,
        context.span_id,
        parent_id,
        phases.began_ns + offset_ns,
        phases.last_ns + offset_ns,
        {**common, **attributes},
        SpanKind.SERVER,
        links=links,
        error=error_of(request.status),
        state=context.state,
    )


def error_of(status: int | None) -> str | None:
    """Return the error of a span whose request was answered with a status; None if the server did not fail."""
    return f"status {status}" if status is not None and status >= 500 else None
