"""What Prometheus scrapes: times and counts of requests, beside what `engine_metrics` reads."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.load.engine_metrics import EngineCollector, whole_server
from plimsoll_runtime.api.state import ServerState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_COUNTS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class Metrics:
    """All series of one server, on a registry of their own. Their label `model` is the first of a model's names."""

    def __init__(self, state: ServerState) -> None:
        self._default = whole_server(state)
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "plimsoll_requests",
            "Requests answered, by status code (499: the client hung up).",
            ("model", "endpoint", "code"),
            registry=self.registry,
        )
        self._finished = Counter(
            "plimsoll_answers",
            "Answers finished, by reason.",
            ("model", "finish_reason"),
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "plimsoll_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            FIRST_TOKEN_SECONDS,
        )
        self._gap = self._histogram("plimsoll_inter_token_seconds", "Between two tokens of one answer.", TOKEN_SECONDS)
        self._duration = self._histogram(
            "plimsoll_request_seconds", "From a request's arrival to the end of its answer.", REQUEST_SECONDS
        )
        self._prompt = self._histogram("plimsoll_request_prompt_tokens", "Prompt tokens of a request.", TOKEN_COUNTS)
        self._completion = self._histogram(
            "plimsoll_request_completion_tokens", "Generated tokens of a request.", TOKEN_COUNTS
        )
        self._work = Counter(
            "plimsoll_answer_seconds",
            "Seconds of the server's work on answers: detokenise (stop strings too), send (waiting for readers too).",
            ("model", "phase"),
            registry=self.registry,
        )
        self._last = Gauge(
            "plimsoll_last_request_timestamp_seconds",
            "When the last request for a model ended, in seconds since the epoch; no sample before the first.",
            ("model",),
            registry=self.registry,
        )
        if self._default:
            for histogram in (self._first_token, self._gap, self._duration, self._prompt, self._completion):
                histogram.labels(self._default)
        self.registry.register(EngineCollector(state))

    def observe(self, record: RequestRecord, endpoint: str, code: int) -> None:
        """Count a request that has ended. `endpoint` is a route, never what a client sent."""
        model = record.model or self._default
        self._requests.labels(model, endpoint, str(code)).inc()
        if record.model:
            self._last.labels(record.model).set_to_current_time()
        for reason in record.finish_reasons:
            self._finished.labels(model, reason).inc()
        self._work.labels(model, "detokenise").inc(record.text_seconds)
        self._work.labels(model, "send").inc(record.send_seconds)
        if record.first_token is None:
            return
        self._first_token.labels(model).observe(record.first_token - record.started)
        gap = self._gap.labels(model)
        for seconds, tokens in record.token_gaps:
            for _ in range(tokens):
                gap.observe(seconds / tokens)
        self._duration.labels(model).observe(time.monotonic() - record.started)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._completion.labels(model).observe(record.completion_tokens)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model",), buckets=buckets, registry=self.registry)
