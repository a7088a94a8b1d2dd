"""Sends the spans of finished requests in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_telemetry.sampler import Sampler
from plimsoll_telemetry.settings import TracingSettings
from plimsoll_telemetry.span import Span

log = logging.getLogger(__name__)

MakeSpans = Callable[[], Sequence[Span]]
"""Makes the spans of one request from its record. Called in the tracer's thread, once the request has ended."""

SENT, QUEUE_FULL, NOT_TAKEN, NOT_MADE = "sent", "queue_full", "not_taken", "not_made"
OUTCOMES = (SENT, QUEUE_FULL, NOT_TAKEN, NOT_MADE)
WARNING_SECONDS = 60.0
CLOSE_SECONDS = 3.0


class SendError(Exception):
    """Spans could not be sent; the message says why."""


class SpanExporter(Protocol):
    """Sends spans to a collector."""

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans, and wait until the collector has them. Raises SendError."""


class Tracer(Collector):
    """Samples requests, and sends what is to be known of them once they have ended. Also collects its own metrics.

    Nothing waits for a collector: if it is slow, dead or absent, records are dropped and counted.
    """

    def __init__(
        self,
        settings: TracingSettings,
        exporter: Callable[[], SpanExporter],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`exporter` is called in the thread, since importing its libraries takes a while."""
        self.sampler = Sampler(settings.ratio, settings.most, clock)
        self.content = settings.content
        self._settings = settings
        self._exporter = exporter
        self._clock = clock
        self._queue: deque[MakeSpans] = deque()
        self._outcomes: Counter[str] = Counter()
        self._wake = threading.Event()
        self._ending = False
        self._warned: float | None = None
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def finish(self, make: MakeSpans) -> None:
        """Send the spans of a request that has ended, and was sampled. Returns at once."""
        if len(self._queue) >= self._settings.queue:
            self._outcomes[QUEUE_FULL] += 1
            return
        self._queue.append(make)
        if 2 * len(self._queue) >= self._settings.queue:
            self._wake.set()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is in the queue, for at most `seconds`, and end the thread."""
        self._ending = True
        self._wake.set()
        self._thread.join(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the tracer's counters."""
        outcomes = CounterMetricFamily(
            "plimsoll_traces",
            "Traces by outcome: sent, or dropped (queue_full: the collector is too slow; "
            "not_taken: it refused them or did not answer; not_made: an error of this program).",
            labels=("outcome",),
        )
        for outcome in OUTCOMES:
            outcomes.add_metric((outcome,), self._outcomes[outcome])
        yield outcomes
        yield CounterMetricFamily(
            "plimsoll_traces_over_bound",
            "Requests that were to be traced, and were not because of the bound on traces a second.",
            value=self.sampler.over_bound,
        )

    def _run(self) -> None:
        exporter: SpanExporter
        try:
            exporter = self._exporter()
        except Exception as error:  # noqa: BLE001 - such as a certificate or a timeout that it cannot read
            exporter = _Unusable(f"{type(error).__name__}: {error}")
        while True:
            self._wake.wait(self._settings.delay)
            self._wake.clear()
            ending = self._ending
            while self._queue:
                self._send_batch(exporter)
            if ending:
                return

    def _send_batch(self, exporter: SpanExporter) -> None:
        spans: list[Span] = []
        records = 0
        while self._queue and len(spans) < self._settings.batch:
            make = self._queue.popleft()
            try:
                spans += make()
                records += 1
            except Exception as error:  # noqa: BLE001 - the thread must live on, and the count and the log tell it
                self._outcomes[NOT_MADE] += 1
                self._warn(f"a trace could not be made: {type(error).__name__}: {error}")
        if not spans:
            return
        try:
            exporter.send(spans)
        except SendError as error:
            self._outcomes[NOT_TAKEN] += records
            self._warn(f"traces could not be sent: {error}")
        except Exception as error:  # noqa: BLE001 - an error in an exporter must not end the thread either
            self._outcomes[NOT_TAKEN] += records
            self._warn(f"traces could not be sent: {type(error).__name__}: {error}")
        else:
            self._outcomes[SENT] += records

    def _warn(self, text: str) -> None:
        """Log a warning, at most one each minute."""
        now = self._clock()
        if self._warned is None or now - self._warned >= WARNING_SECONDS:
            self._warned = now
            log.warning("%s (requests are not affected; see plimsoll_traces_total)", text)


class _Unusable:
    """In place of an exporter that could not be made."""

    def __init__(self, error: str) -> None:
        self._error = error

    def send(self, spans: Sequence[Span]) -> None:
        """Raise SendError."""
        raise SendError(self._error)
