"""Traces of recorded steps: phases and ops below the step, links to its requests and back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from server_support.collected_traces import INFO, CollectedTraces

from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.request_spans import RequestSpans
from plimsoll_runtime.api.telemetry.step_reporter import MOST_LINKS, StepReporter
from plimsoll_runtime.api.telemetry.traced_requests import TracedRequests
from plimsoll_runtime.engine.protocol.messages import OpWork, StepReason, TracedStep
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.server_span import HttpRequest
from plimsoll_telemetry.span import Span, SpanLink
from plimsoll_telemetry.trace_context import TraceContext

PHASES = [
    (StepPhase.SCHEDULE.value, 1_000, 2_000),
    (StepPhase.INPUTS.value, 2_000, 3_000),
    (StepPhase.FORWARD.value, 3_000, 8_000),
    (StepPhase.HEAD.value, 8_000, 9_000),
]
OPS = [
    OpWork("qkv", 2e-6, 100, 10),
    OpWork("attention", 1e-6, 200, 20),
    OpWork("head", None, 300, 30),
]
STEP = TracedStep(StepReason.SAMPLED, 1_000, 9_000, 5, 2, PHASES, ["e-0", "f-0"], 0.001, 1, 2, 0, OPS)


def spans_of(step: TracedStep, requests: TracedRequests | None = None, ratio: float = 1.0) -> list[Sequence[Span]]:
    tracer = CollectedTraces(ratio)
    about = {names.REQUEST_MODEL: "chat"}
    StepReporter(tracer, requests or TracedRequests()).report(step, INFO, about)  # type: ignore[arg-type]
    return tracer.traces


def record_of(number: int, *, sampled: bool = True) -> RequestRecord:
    return RequestRecord(f"r{number}", span=TraceContext(number, number + 1, sampled))


def test_phases_are_below_the_step_and_ops_below_the_forward_pass() -> None:
    [spans] = spans_of(STEP)
    root, by_name = spans[0], {span.name: span for span in spans}
    assert (root.name, root.parent_id, root.end_ns - root.start_ns) == ("engine step", 0, 8_000)
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert len({span.span_id for span in spans}) == len(spans)
    for name in ("schedule", "inputs", "forward", "head"):
        assert by_name[name].parent_id == root.span_id
    forward = by_name["forward"]
    ops = [span for span in spans if span.parent_id == forward.span_id]
    assert [(span.name, span.end_ns - span.start_ns) for span in ops] == [
        ("qkv", 2_000),
        ("attention", 1_000),
        ("around", 2_000),
    ]
    assert ops[0].start_ns == forward.start_ns
    assert ops[-1].end_ns == forward.end_ns


def test_the_step_says_why_it_was_recorded_and_what_it_did() -> None:
    [spans] = spans_of(STEP)
    by_name = {span.name: span.attributes for span in spans}
    assert by_name["engine step"] == {
        names.REQUEST_MODEL: "chat",
        names.REASON: "sampled",
        names.TOKENS: 5,
        names.SEQUENCES: 2,
        names.DEVICE: "cpu",
        names.ATTENTION_BACKEND: "cpu",
        names.FLOPS: 600,
        names.BYTES: 60,
        names.USUAL_SECONDS: 0.001,
    }
    assert by_name["inputs"] == {names.SPILLED_BLOCKS: 1, names.RESTORED_BLOCKS: 2}
    assert by_name["qkv"] == {names.FLOPS: 100, names.BYTES: 10, names.SCHEME: "bfloat16"}
    assert by_name["attention"] == {names.FLOPS: 200, names.BYTES: 20, names.ATTENTION_BACKEND: "cpu"}
    assert by_name["head"] == {names.FLOPS: 300, names.BYTES: 30, names.SCHEME: "bfloat16"}


def test_ops_that_were_not_measured_have_no_span_but_their_costs() -> None:
    ops = [msgspec.structs.replace(op, seconds=None) for op in OPS]
    [spans] = spans_of(msgspec.structs.replace(STEP, ops=ops))
    forward = next(span for span in spans if span.name == "forward")
    assert [span for span in spans if span.parent_id == forward.span_id] == []
    assert forward.attributes[f"{names.FLOPS}.qkv"] == 100
    assert forward.attributes[f"{names.BYTES}.attention"] == 20


@pytest.mark.parametrize("seconds", [1e-6, 4e-6, 1.0])
def test_ops_never_leave_the_forward_pass(seconds: float) -> None:
    ops = [msgspec.structs.replace(op, seconds=seconds) for op in OPS[:2]]
    [spans] = spans_of(msgspec.structs.replace(STEP, ops=ops))
    forward = next(span for span in spans if span.name == "forward")
    own = [span for span in spans if span.parent_id == forward.span_id]
    assert all(forward.start_ns <= span.start_ns <= span.end_ns <= forward.end_ns for span in own)


def test_the_step_links_to_its_traced_requests_and_they_to_it() -> None:
    requests, record = TracedRequests(), record_of(7)
    requests.add("e-0", record)
    [spans] = spans_of(STEP, requests, ratio=0.0)
    assert spans[0].links == [SpanLink(7, 8)]
    assert record.steps == [SpanLink(spans[0].trace_id, spans[0].span_id)]
    request = RequestSpans(record, HttpRequest("POST", "/v1/chat/completions", 200, "r"), 0)()[0]
    assert list(request.links) == record.steps


def test_two_choices_of_a_request_are_one_link() -> None:
    requests, record = TracedRequests(), record_of(7)
    for name in STEP.request_ids:
        requests.add(name, record)
    [spans] = spans_of(STEP, requests)
    assert len(spans[0].links) == len(record.steps) == 1


def test_a_step_without_traced_requests_is_sampled_like_a_request() -> None:
    assert spans_of(STEP, ratio=0.0) == []
    assert len(spans_of(STEP, ratio=1.0)) == 1


def test_the_links_of_a_long_request_are_bounded() -> None:
    requests, record = TracedRequests(), record_of(7)
    requests.add("e-0", record)
    for _ in range(MOST_LINKS + 5):
        spans_of(STEP, requests)
    assert len(record.steps) == MOST_LINKS


def test_a_group_shows_how_long_its_ranks_waited() -> None:
    [spans] = spans_of(msgspec.structs.replace(STEP, ops=[], waited={1: 3e-6, 0: 2e-6}))
    forward = next(span for span in spans if span.name == "forward")
    assert forward.attributes == {names.WAITED_SECONDS: [2e-6, 3e-6]}
    own = [(span.name, span.end_ns - span.start_ns) for span in spans if span.parent_id == forward.span_id]
    assert own == [("wait for ranks", 2_000), ("around", 3_000)]
