"""Zipkin's JSON by its API's schema, and servers that answer wrongly, late or not at all."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_support.collectors import dead_port, http_collector, raw_server, read_request

from plimsoll_telemetry.span import AttributeValue, Span, SpanEvent, SpanKind
from plimsoll_telemetry.tracer import SendError
from plimsoll_telemetry.zipkin import ZipkinExporter, encoded

TEXT = st.text(max_size=20)
VALUES: st.SearchStrategy[AttributeValue] = (
    TEXT
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(TEXT, max_size=3)
    | st.lists(st.integers(0, 9), max_size=3)
)
ATTRIBUTES = st.dictionaries(TEXT, VALUES, max_size=4)
TIMES = st.integers(1, 2**62)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start = draw(TIMES)
    return Span(
        draw(TEXT),
        draw(st.integers(1, 2**128 - 1)),
        draw(st.integers(1, 2**64 - 1)),
        draw(st.integers(0, 2**64 - 1)),
        start,
        start + draw(st.integers(0, 10**12)),
        draw(ATTRIBUTES),
        draw(st.sampled_from(SpanKind)),
        draw(st.lists(st.builds(SpanEvent, TEXT, TIMES, ATTRIBUTES), max_size=3)),
        error=draw(st.none() | TEXT),
    )


def check_schema(found: dict[str, Any]) -> None:
    """Check an object against Span of Zipkin's API, version 2 (zipkin2-api.yaml)."""
    known = {"traceId", "id", "parentId", "kind", "name", "timestamp", "duration", "localEndpoint", "annotations"}
    assert found.keys() <= known | {"tags", "remoteEndpoint", "debug", "shared"}
    assert re.fullmatch("[a-f0-9]{16,32}", found["traceId"])
    assert re.fullmatch("[a-f0-9]{16}", found["id"])
    assert re.fullmatch("[a-f0-9]{16}", found.get("parentId", "0" * 16))
    assert found.get("kind", "CLIENT") in ("CLIENT", "SERVER", "PRODUCER", "CONSUMER")
    assert isinstance(found["name"], str)
    assert type(found["timestamp"]) is type(found["duration"]) is int
    assert found["duration"] >= 1
    assert found["localEndpoint"].keys() <= {"serviceName", "ipv4", "ipv6", "port"}
    for annotation in found.get("annotations", []):
        assert annotation.keys() == {"timestamp", "value"}
        assert (type(annotation["timestamp"]), type(annotation["value"])) == (int, str)
    assert all(type(name) is type(value) is str for name, value in found["tags"].items())


@given(spans())
def test_the_schema_of_the_api(span: Span) -> None:
    found = json.loads(json.dumps(encoded(span, "service")))
    check_schema(found)
    assert int(found["traceId"], 16) == span.trace_id
    assert int(found["id"], 16) == span.span_id
    assert int(found.get("parentId", "0"), 16) == span.parent_id
    assert found["timestamp"] == span.start_ns // 1000
    assert found.get("kind", "INTERNAL") == span.kind.name
    assert len(found.get("annotations", [])) == len(span.events)
    assert (found["tags"].get("error") == span.error) if span.error is not None else True


def test_values_as_opentelemetrys_mapping_gives_them() -> None:
    attributes: dict[str, AttributeValue] = {"a": 1, "b": True, "c": [1, 2], "d": "x", "e": 0.5}
    events = [SpanEvent("chunk", 3_500, {"n": 7}), SpanEvent("alone", 4_000)]
    found = encoded(Span("n", 1, 2, 3, 2_000, 9_000, attributes, events=events, error="gone"), "me")
    assert found["tags"] == {
        **{"a": "1", "b": "true", "c": "[1,2]", "d": "x", "e": "0.5"},
        **{"otel.status_code": "ERROR", "error": "gone"},
    }
    assert found["annotations"] == [
        {"timestamp": 3, "value": '"chunk":{"n":7}'},
        {"timestamp": 4, "value": "alone"},
    ]
    assert (found["timestamp"], found["duration"], found["localEndpoint"]) == (2, 7, {"serviceName": "me"})


def test_a_server_gets_all_spans_in_one_request() -> None:
    with http_collector() as server:
        ZipkinExporter(server.endpoint + "/api/v2/spans", 10.0, "me").send([Span("a", 1, 2, 0, 1000, 2000)] * 3)
    assert [len(json.loads(body)) for body in server.bodies] == [3]
    assert server.headers[0]["path"] == "/api/v2/spans"
    assert server.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
def test_a_status_of_an_error(code: int) -> None:
    with http_collector() as server:
        server.code = code
        with pytest.raises(SendError, match=rf"{server.endpoint}: .*{code}"):
            ZipkinExporter(server.endpoint, 10.0, "me").send([Span("a", 1, 2, 0, 1000, 2000)])


def close(connection: socket.socket) -> None:
    """Close at once."""


def close_after_request(connection: socket.socket) -> None:
    read_request(connection)


def garbage(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"hello\r\n\r\n")


def long_line(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 202 " + b"x" * 100_000 + b"\r\n\r\n")


@pytest.mark.parametrize("serve", [close, close_after_request, garbage, long_line])
def test_an_answer_that_is_not_one(serve: Any) -> None:
    with raw_server(serve) as url, pytest.raises(SendError) as caught:
        ZipkinExporter(url, 10.0, "me").send([Span("a", 1, 2, 0, 1000, 2000)])
    assert str(caught.value).startswith(f"{url}: ")
    assert len(str(caught.value)) > len(url) + 2, "it says what is wrong"


def test_a_server_that_does_not_answer_is_given_up() -> None:
    def hang(connection: socket.socket) -> None:
        read_request(connection)
        connection.recv(1)  # until the client gives up

    with raw_server(hang) as url, pytest.raises(SendError, match="timed out"):
        ZipkinExporter(url, 0.05, "me").send([Span("a", 1, 2, 0, 1000, 2000)])


def test_an_answer_of_one_byte_at_a_time_is_given_up() -> None:
    """Each byte comes before the time is up, and the answer never ends."""

    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.settimeout(0.01)
        for byte in b"HTTP/1.1 202 " + b"x" * 60_000:
            connection.sendall(bytes([byte]))
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                pass

    with raw_server(drip) as url, pytest.raises(SendError, match="timed out"):
        ZipkinExporter(url, 0.3, "me").send([Span("a", 1, 2, 0, 1000, 2000)])


@pytest.mark.parametrize("endpoint", ["", "http://collector.invalid:9411/", "nonsense", "http://[::1"])
def test_an_endpoint_that_cannot_be_reached(endpoint: str) -> None:
    with pytest.raises(SendError):
        ZipkinExporter(endpoint or f"http://127.0.0.1:{dead_port()}", 10.0, "me").send([Span("a", 1, 2, 0, 1000, 2000)])
