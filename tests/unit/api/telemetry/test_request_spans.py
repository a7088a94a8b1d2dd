"""The spans of a request in a server, and which requests have some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.datastructures import Headers
from telemetry_support.kept import KeptSpans, check_tree

from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.api.telemetry.request_record import GENERATE, RequestRecord
from plimsoll_runtime.api.telemetry.request_reporter import RequestReporter
from plimsoll_runtime.engine.protocol.messages import Mark, MarkKind, WaitReason
from plimsoll_telemetry.span import SpanKind

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


class Clock:
    """The monotonic clock, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic_ns", made)
    return made


class Observed:
    """Metrics that keep what they are given."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int]] = []

    def observe(self, record: RequestRecord, route: str, code: int) -> None:
        self.requests.append((route, code))


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    made = KeptSpans()
    yield made
    made.close()


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def reporter(kept: KeptSpans, observed: Observed) -> RequestReporter:
    return RequestReporter(cast(Metrics, observed), kept.tracer)


def record_of(reporter: RequestReporter, clock: Clock, marks: dict[int, list[Mark]], **headers: str) -> RequestRecord:
    """Return a record with the phases read, generate (from 2 ms to 9 ms) and these marks."""
    record = reporter.begin("mine", Headers(headers))
    clock.now += 1_000_000
    record.phases.end("read")
    record.marks = marks
    clock.now += 7_000_000
    record.phases.end(GENERATE)
    clock.now += 1_000_000
    return record


MARKS = [
    Mark(MarkKind.QUEUED, 3_000_000),
    Mark(MarkKind.SCHEDULED, 4_000_000, 16, WaitReason.KV_BLOCKS),
    Mark(MarkKind.CHUNK, 4_000_000, 24),
    Mark(MarkKind.FIRST_TOKEN, 5_000_000),
    Mark(MarkKind.PREEMPTED, 6_000_000, why=WaitReason.MORE_URGENT),
    Mark(MarkKind.SCHEDULED, 7_000_000),
    Mark(MarkKind.FINISHED, 8_000_000),
]


def test_a_whole_request(reporter: RequestReporter, clock: Clock, kept: KeptSpans, observed: Observed) -> None:
    record = record_of(reporter, clock, {0: list(MARKS)}, traceparent=PARENT, tracestate="a=b")
    record.model, record.prompt_tokens, record.cached_tokens, record.completion_tokens = "m", 40, 16, 3
    record.finished("length")
    reporter.ended(record, "POST", "/v1/completions", 200)
    spans = kept.close()
    root = check_tree(spans, int(SPAN, 16))
    assert (root.name, root.kind, root.error, root.state) == ("POST /v1/completions", SpanKind.SERVER, None, "a=b")
    assert f"{root.trace_id:032x}" == record.trace == TRACE
    expected: dict[str, Any] = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "plimsoll.request_id": "mine",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert expected.items() <= root.attributes.items()
    phases = [span for span in spans if span.parent_id == root.span_id]
    assert [span.name for span in phases] == ["read", "generate", "respond"]
    assert sum(span.end_ns - span.start_ns for span in phases) == root.end_ns - root.start_ns == 9_000_000
    stages = [span for span in spans if span.parent_id == phases[1].span_id]
    assert [(span.name, (span.end_ns - span.start_ns) // 1_000_000) for span in stages] == [
        *(("submit", 1), ("queue", 1), ("prefill", 1), ("decode", 1), ("preempted", 1), ("decode", 1), ("deliver", 1)),
    ]
    _, queue, prefill, _, preempted, *_ = stages
    assert queue.attributes["plimsoll.reason"] == "kv_blocks"
    assert preempted.attributes["plimsoll.reason"] == "more_urgent"
    assert prefill.attributes["plimsoll.found_tokens"] == 16
    assert [(event.name, event.attributes) for event in prefill.events] == [("chunk", {"plimsoll.tokens": 24})]
    assert observed.requests == [("/v1/completions", 200)]


def test_each_choice_has_its_stages(reporter: RequestReporter, clock: Clock, kept: KeptSpans) -> None:
    record = record_of(reporter, clock, {0: list(MARKS), 1: MARKS[:3]})
    reporter.ended(record, "POST", "/v1/completions", 499)
    spans = kept.close()
    check_tree(spans)
    assert [span.name for span in spans if span.attributes.get("plimsoll.choice") == 1] == [
        "submit",
        "queue",
        "prefill",
    ]
    (last,) = [span for span in spans if span.name == "prefill" and span.attributes["plimsoll.choice"] == 1]
    (generate,) = [span for span in spans if span.name == "generate"]
    assert last.end_ns == generate.end_ns, "its end was not sent: the client had hung up"


def test_a_request_without_marks_is_whole_too(reporter: RequestReporter, clock: Clock, kept: KeptSpans) -> None:
    reporter.ended(record_of(reporter, clock, {}), "GET", "other", 503)
    spans = kept.close()
    assert check_tree(spans).error == "status 503"
    assert len(spans) == 4


def test_work_after_the_response_is_a_span_within_the_request(
    reporter: RequestReporter, clock: Clock, kept: KeptSpans
) -> None:
    record = record_of(reporter, clock, {})
    later = record.detached()
    reporter.ended(record, "POST", "/v1/responses", 200)
    later.marks = {0: list(MARKS)}
    reporter.ended(later, "POST", "/v1/responses (background)", 200)
    first, second = [span for span in kept.close() if span.kind is SpanKind.SERVER]
    assert (second.trace_id, second.parent_id) == (first.trace_id, first.span_id)
    assert first.span_id != second.span_id


@pytest.mark.parametrize(
    "headers", [{"traceparent": PARENT[:-1] + "0"}, {"traceparent": PARENT, "reported": ""}], ids=["unsampled", "probe"]
)
def test_requests_without_spans(
    reporter: RequestReporter, observed: Observed, kept: KeptSpans, headers: dict[str, str]
) -> None:
    reported = headers.pop("reported", "yes") == "yes"
    record = reporter.begin("mine", Headers(headers), reported=reported)
    reporter.ended(record, "POST", "/v1/completions", 200)
    assert kept.close() == []
    assert record.trace == TRACE, "log lines name the caller's trace"
    assert observed.requests == [("/v1/completions", 200)]


def test_without_a_tracer(observed: Observed) -> None:
    reporter = RequestReporter(cast(Metrics, observed))
    for header, trace in ((PARENT, TRACE), ("garbage", None)):
        record = reporter.begin("mine", Headers({"traceparent": header}))
        reporter.ended(record, "POST", "/v1/completions", 200)
        assert (record.trace, record.span) == (trace, None)
