"""The tracer's thread: whatever the collector does, requests do not wait, and each dropped trace is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from plimsoll_telemetry.settings import TracingSettings
from plimsoll_telemetry.span import Span
from plimsoll_telemetry.tracer import NOT_MADE, NOT_TAKEN, OUTCOMES, QUEUE_FULL, SENT, SendError, Tracer

SPAN = Span("s", 1, 2, 0, 10, 20)
SECONDS = 30.0


class FakeExporter:
    """Keeps batches. While `gate` is not set, `send` does not return. `error` is raised."""

    def __init__(self) -> None:
        self.batches: list[list[Span]] = []
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def send(self, spans: Sequence[Span]) -> None:
        self.began.set()
        assert self.gate.wait(SECONDS)
        if self.error is not None:
            raise self.error
        self.batches.append(list(spans))


@pytest.fixture
def exporter() -> FakeExporter:
    return FakeExporter()


Make = Callable[..., Tracer]


@pytest.fixture
def make(exporter: FakeExporter) -> Iterator[Make]:
    made: list[Tracer] = []

    def tracer(
        clock: Callable[[], float] = lambda: 0.0, source: Callable[[], FakeExporter] = lambda: exporter, **settings: int
    ) -> Tracer:
        made.append(Tracer(TracingSettings(**{"delay": 3600.0, **settings}), source, clock))  # type: ignore[arg-type]
        return made[-1]

    yield tracer
    exporter.gate.set()
    for each in made:
        each.close(SECONDS)


def counts(tracer: Tracer) -> dict[str, float]:
    """Return the outcomes that are not zero."""
    family = next(iter(tracer.collect()))
    assert [sample.labels["outcome"] for sample in family.samples] == list(OUTCOMES)
    return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.value}


def fails() -> Sequence[Span]:
    raise RuntimeError("no spans of this record")


def test_close_sends_what_is_queued_in_batches(make: Make, exporter: FakeExporter) -> None:
    tracer = make(batch=4)
    for _ in range(5):
        tracer.finish(lambda: [SPAN, SPAN])
    tracer.close(SECONDS)
    assert [len(batch) for batch in exporter.batches] == [4, 4, 2]
    assert counts(tracer) == {SENT: 5}


def test_a_slow_collector_costs_drops_that_are_counted(make: Make, exporter: FakeExporter) -> None:
    exporter.gate.clear()
    tracer = make(queue=4, batch=1)
    for _ in range(4):
        tracer.finish(lambda: [SPAN])
    assert exporter.began.wait(SECONDS), "a queue that is half full is sent before the delay has passed"
    for _ in range(10):
        tracer.finish(lambda: [SPAN])
    assert counts(tracer) == {QUEUE_FULL: 9}, "one is being sent, and four wait"
    exporter.gate.set()
    tracer.close(SECONDS)
    assert counts(tracer) == {QUEUE_FULL: 9, SENT: 5}


def test_a_record_whose_spans_cannot_be_made_loses_no_other(
    make: Make, exporter: FakeExporter, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = make()
    for record in (lambda: [SPAN], fails, lambda: [SPAN]):
        tracer.finish(record)
    tracer.close(SECONDS)
    assert counts(tracer) == {SENT: 2, NOT_MADE: 1}
    assert [len(batch) for batch in exporter.batches] == [2]
    assert "RuntimeError: no spans of this record" in caplog.text


@pytest.mark.parametrize("error", [SendError("refused"), RuntimeError("a bug"), OSError("broken"), ValueError()])
def test_an_exporter_that_fails_does_not_end_the_thread(make: Make, exporter: FakeExporter, error: Exception) -> None:
    exporter.error = error
    tracer = make(batch=1)
    for _ in range(3):
        tracer.finish(lambda: [SPAN])
    tracer.close(SECONDS)
    assert counts(tracer) == {NOT_TAKEN: 3}


def test_an_exporter_that_cannot_be_made_is_told_and_its_traces_are_counted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def source() -> FakeExporter:
        raise ValueError("OTEL_EXPORTER_OTLP_TIMEOUT is 'soon'")

    tracer = make(source=source)
    for _ in range(3):
        tracer.finish(lambda: [SPAN])
    tracer.close(SECONDS)
    assert counts(tracer) == {NOT_TAKEN: 3}
    assert "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon'" in caplog.text


def test_warnings_are_at_most_one_a_minute(
    make: Make, exporter: FakeExporter, caplog: pytest.LogCaptureFixture
) -> None:
    times = iter([0.0, 1.0, 59.9, 60.0, 61.0, 119.9, 200.0])
    exporter.error = SendError("refused")
    tracer = make(clock=lambda: next(times, 1000.0) if exporter.began.is_set() else 0.0, batch=1)
    for _ in range(7):
        tracer.finish(lambda: [SPAN])
    tracer.close(SECONDS)
    assert counts(tracer) == {NOT_TAKEN: 7}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert "traces could not be sent: refused" in warnings[0].getMessage()
    assert "requests are not affected" in warnings[0].getMessage()


def test_close_does_not_wait_for_a_dead_collector(make: Make, exporter: FakeExporter) -> None:
    exporter.gate.clear()
    tracer = make()
    tracer.finish(lambda: [SPAN])
    tracer.close(0.01)
    assert exporter.began.wait(SECONDS)
    assert counts(tracer) == {}


def test_finish_after_close_neither_waits_nor_raises(make: Make) -> None:
    tracer = make(queue=2)
    tracer.close(SECONDS)
    for _ in range(5):
        tracer.finish(lambda: [SPAN])
    assert counts(tracer) == {QUEUE_FULL: 3}


def test_requests_over_the_bound_are_counted(make: Make) -> None:
    tracer = make(most=2)
    assert [tracer.sampler.begin(None).sampled for _ in range(5)] == [True, True, False, False, False]
    (family,) = list(tracer.collect())[1:]
    assert [(sample.name, sample.value) for sample in family.samples] == [("plimsoll_traces_over_bound_total", 3)]
