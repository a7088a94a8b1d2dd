"""Sends spans to Zipkin as JSON of its version 2 API.

OpenTelemetry ends its own Zipkin exporters. The mapping of spans is that of its specification (sdk_exporters/zipkin).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from plimsoll_telemetry.span import Attributes, AttributeValue, Span, SpanKind
from plimsoll_telemetry.tracer import SendError

_KINDS = {SpanKind.SERVER: "SERVER", SpanKind.CLIENT: "CLIENT"}


class ZipkinExporter:
    """Encodes spans and sends them."""

    def __init__(self, endpoint: str, timeout: float, service: str) -> None:
        """`timeout` is in seconds, for the connection and for each part of the answer."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._service = service

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans. Raises SendError."""
        body = msgspec.json.encode([encoded(span, self._service) for span in spans])
        try:
            request = Request(self._endpoint, body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=self._timeout):
                return
        except (URLError, OSError, ValueError) as error:
            raise SendError(f"{self._endpoint}: {error}") from error


def encoded(span: Span, service: str) -> dict[str, Any]:
    """Return a span as an object of Zipkin's API; times are in microseconds."""
    found: dict[str, Any] = {
        "traceId": f"{span.trace_id:032x}",
        "id": f"{span.span_id:016x}",
        "name": span.name,
        "timestamp": span.start_ns // 1000,
        "duration": max(1, (span.end_ns - span.start_ns) // 1000),
        "localEndpoint": {"serviceName": service},
        "tags": _tags(span.attributes),
    }
    if span.parent_id:
        found["parentId"] = f"{span.parent_id:016x}"
    if span.kind in _KINDS:
        found["kind"] = _KINDS[span.kind]
    if span.events:
        found["annotations"] = [
            {"timestamp": event.at_ns // 1000, "value": _annotation(event)} for event in span.events
        ]
    if span.links:  # which Zipkin's API does not have
        found["tags"]["links"] = ", ".join(f"{link.trace_id:032x}/{link.span_id:016x}" for link in span.links)
    if span.error is not None:
        found["tags"] |= {"otel.status_code": "ERROR", "error": span.error}
    return found


def _annotation(event: Any) -> str:
    return f"{event.name}: {msgspec.json.encode(event.attributes).decode()}" if event.attributes else event.name


def _tags(attributes: Attributes) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes.items()}


def _text(value: AttributeValue) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
