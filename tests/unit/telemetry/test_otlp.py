"""OTLP over HTTP and gRPC, against collectors that are written with OTLP's own messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from telemetry_support.collectors import Received, dead_port, grpc_collector, http_collector

from plimsoll_telemetry.otlp import OtlpExporter
from plimsoll_telemetry.span import Attributes, Span, SpanEvent, SpanKind, SpanLink
from plimsoll_telemetry.tracer import SendError

TRACE, ROOT, CHILD = 0xAF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x42
ATTRIBUTES: Attributes = {"text": "x", "number": 7, "share": 0.5, "flag": True, "words": ["a", "b"], "numbers": [1, 2]}
SPANS = [
    Span("POST /v1", TRACE, ROOT, 0, 1_000, 9_000, ATTRIBUTES, SpanKind.SERVER, error="status 500", state="a=b,c=d"),
    Span(
        "attempt",
        TRACE,
        CHILD,
        ROOT,
        2_000,
        3_000,
        {},
        SpanKind.CLIENT,
        [SpanEvent("chunk", 2_500, {"tokens": 3})],
        [SpanLink(5, 6)],
    ),
    Span("queue", TRACE, 0x43, CHILD, 2_000, 2_000),
]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave OpenTelemetry's loggers as they were, and give collectors a short time."""
    theirs = logging.getLogger("opentelemetry")
    before = theirs.handlers, theirs.propagate
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    yield
    theirs.handlers, theirs.propagate = before


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def collector(protocol: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with grpc_collector() if protocol == "grpc" else http_collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


def values(attributes: object) -> dict[str, object]:
    """Return attributes of OTLP as plain values."""
    found: dict[str, object] = {}
    for each in attributes:  # type: ignore[attr-defined]
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [getattr(one, one.WhichOneof("value")) for one in value.values]
        found[each.key] = value
    return found


def test_every_field_arrives(protocol: str, collector: Received) -> None:
    OtlpExporter(protocol, "plimsoll-x", {"service.version": "1"}).send(SPANS)
    root, child, queue = collector.spans()
    assert (root.name, root.trace_id, root.span_id) == ("POST /v1", TRACE.to_bytes(16, "big"), ROOT.to_bytes(8, "big"))
    assert (root.parent_span_id, root.kind, root.trace_state) == (b"", OtlpSpan.SPAN_KIND_SERVER, "a=b,c=d")
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (1_000, 9_000)
    assert values(root.attributes) == ATTRIBUTES
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "status 500")
    assert (child.parent_span_id, child.kind) == (root.span_id, OtlpSpan.SPAN_KIND_CLIENT)
    (event,) = child.events
    assert (event.name, event.time_unix_nano, values(event.attributes)) == ("chunk", 2_500, {"tokens": 3})
    (link,) = child.links
    assert (link.trace_id, link.span_id) == ((5).to_bytes(16, "big"), (6).to_bytes(8, "big"))
    assert (queue.kind, queue.parent_span_id) == (OtlpSpan.SPAN_KIND_INTERNAL, child.span_id)
    assert queue.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize(
    ("environment", "name", "more"),
    [
        ({}, "plimsoll-x", "1"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine", "1"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=his%20own,service.version=2"}, "his own", "2"),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=his"}, "mine", "1"),
    ],
)
def test_the_environment_names_the_service(
    collector: Received,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    name: str,
    more: str,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    OtlpExporter(protocol, "plimsoll-x", {"service.version": "1"}).send(SPANS)
    (resource,) = [each.resource for request in collector.requests for each in request.resource_spans]
    found = values(resource.attributes)
    assert (found["service.name"], found["service.version"]) == (name, more)


def test_headers_of_the_environment_are_sent(
    protocol: str, collector: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b")
    OtlpExporter(protocol, "plimsoll-x", {}).send(SPANS)
    assert collector.headers[0]["x-tenant"] == "a b"


def test_a_collector_that_fails_is_a_send_error_and_not_in_our_log(
    protocol: str, collector: Received, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    collector.code = 500
    exporter = OtlpExporter(protocol, "plimsoll-x", {})
    for _ in range(3):
        with pytest.raises(SendError, match=r"500|INTERNAL"):
            exporter.send(SPANS)
    collector.code = 200
    exporter.send(SPANS)
    assert len(collector.spans()) == len(SPANS)
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert "opentelemetry" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("endpoint", ["", "http://collector.invalid:4318"], ids=["dead port", "unknown host"])
def test_a_collector_that_cannot_be_reached(
    protocol: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint or f"http://127.0.0.1:{dead_port()}")
    exporter = OtlpExporter(protocol, "plimsoll-x", {})
    with pytest.raises(SendError) as caught:
        exporter.send(SPANS)
    assert len(str(caught.value)) > 20, "it says what is wrong"
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
