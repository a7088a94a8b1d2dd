"""Sends spans to Zipkin as JSON of its version 2 API.

OpenTelemetry ends its own Zipkin exporters. The mapping of spans is that of its specification (sdk_exporters/zipkin).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from plimsoll_telemetry.span import Attributes, AttributeValue, Span, SpanEvent, SpanKind
from plimsoll_telemetry.tracer import SendError

_KINDS = {SpanKind.SERVER: "SERVER", SpanKind.CLIENT: "CLIENT"}


class ZipkinExporter:
    """Encodes spans and sends them."""

    def __init__(self, endpoint: str, timeout: float, service: str) -> None:
        """`timeout` is in seconds, for a connection, and then for the request and its whole answer."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._service = service

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans. Raises SendError."""
        body = msgspec.json.encode([encoded(span, self._service) for span in spans])
        try:
            status, reason = self._post(body)
        except (OSError, HTTPException, ValueError) as error:
            raise SendError(f"{self._endpoint}: {error or type(error).__name__}") from error
        if not 200 <= status <= 299:
            raise SendError(f"{self._endpoint}: status {status} {reason[:100]}")

    def _post(self, body: bytes) -> tuple[int, str]:
        url = urlsplit(self._endpoint)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("this is no URL of http or https")
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
        connection = kind(url.hostname, url.port, timeout=self._timeout)
        try:
            connection.connect()
            with _no_longer_than(self._timeout, connection.sock):
                connection.request("POST", target, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
            return response.status, response.reason
        finally:
            connection.close()


@contextmanager
def _no_longer_than(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer: a socket's own timeout is for each byte that arrives."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if late.is_set():  # the block may have failed, or taken the end of the connection for that of the answer
            raise TimeoutError("timed out")


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


def _annotation(event: SpanEvent) -> str:
    return f"{_json(event.name)}:{_json(event.attributes)}" if event.attributes else event.name


def _tags(attributes: Attributes) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes.items()}


def _text(value: AttributeValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
