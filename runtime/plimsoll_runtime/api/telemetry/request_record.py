"""The record of one HTTP request for its log line and the metrics. It has no text of the request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from plimsoll_runtime.api.telemetry.request_content import RequestContent
from plimsoll_runtime.engine.protocol.messages import Mark
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_telemetry.phases import Phases
from plimsoll_telemetry.span import AttributeValue, SpanLink
from plimsoll_telemetry.trace_context import TraceContext

GENERATE, POOL = "generate", "pool"
ENGINE_PHASES = (GENERATE, POOL)
"""The phases in which a request waits for its engine."""


@dataclass(slots=True)
class RequestRecord:
    """Counts and times of one request. Times are of the monotonic clock, in seconds, except `created`, which is Unix
    time. The client waits at most `patience` seconds from the start; None has no limit.

    `token_gaps` are (seconds, tokens): the time since the choice's previous tokens, and how many arrived.
    `text_seconds` is the time for detokenising and stop strings, `send_seconds` for encoding and sending a stream's
    events, including waiting for a slow reader. `owner` is the tenant of the request, `tenant` the namespace of the
    cached prefixes that it may use (see `Tenants`). `model` is the first name of its model, `key` the ModelDeployment
    of that, and `load` returns its load (see `load_of`). `ignored` names the fields of its body that were ignored.
    `choices` are asked for, each with at most `max_tokens` tokens; None if the model decides.

    `span` is the request's own span, whose parent is `parent_id`; None if traces are off. `trace` is the id of its
    trace, the caller's also then. `phases` are those of the server, `marks` those of the engine, by choice.

    Only of a request that is traced: `asked` has the numbers that its body sets, as attributes of its span; `steps` are
    the spans of recorded steps that computed it; `engine_ids` are its ids in the engine, which `enter_engine`, if set,
    makes known. `content` is set if its span may have the beginning of prompts and outputs.
    """

    request_id: str
    patience: float | None = None
    trace: str | None = None
    started: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    owner: str = ""
    tenant: str = ""
    model: str = ""
    key: ModelName | None = None
    load: Callable[[], str] | None = None
    ignored: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    choices: int = 0
    max_tokens: int | None = None
    first_token: float | None = None
    text_seconds: float = 0.0
    send_seconds: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)
    token_gaps: list[tuple[float, int]] = field(default_factory=list)
    span: TraceContext | None = None
    parent_id: int = 0
    phases: Phases = field(default_factory=Phases)
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    asked: dict[str, AttributeValue] = field(default_factory=dict)
    steps: list[SpanLink] = field(default_factory=list)
    engine_ids: list[str] = field(default_factory=list)
    enter_engine: Callable[[str, RequestRecord], bool] | None = None
    content: RequestContent | None = None
    _last: dict[int, float] = field(default_factory=dict)
    _counted: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def until(self) -> float | None:
        """The deadline on the monotonic clock; None if there is none."""
        return None if self.patience is None else self.started + self.patience

    def detached(self) -> RequestRecord:
        """Return a record for work that continues after the response: a span within the request's own, counts of its
        own, and no deadline."""
        span, parent_id = (None, 0) if self.span is None else (self.span.child(), self.span.span_id)
        return replace(
            self,
            patience=None,
            span=span,
            parent_id=parent_id,
            finish_reasons=[],
            token_gaps=[],
            phases=Phases(),
            marks={},
            steps=[],
            engine_ids=[],
            content=None if self.content is None else RequestContent(),
            _last={},
            _counted={},
        )

    @property
    def traced(self) -> bool:
        """Whether spans are made of the request."""
        return self.span is not None and self.span.sampled

    def enters_engine(self, engine_id: str) -> None:
        """Record the id of a choice in the engine, so that steps can be linked with the request."""
        if self.enter_engine is not None and self.enter_engine(engine_id, self):
            self.engine_ids.append(engine_id)

    def marked(self, choice: int, marks: list[Mark]) -> None:
        """Record marks of a choice that came from the engine."""
        if (known := self.marks.get(choice)) is None:
            self.marks[choice] = marks
        else:
            known += marks

    def saw(self, choice: int, tokens: int, now: float) -> None:
        """Record that tokens of a choice arrived."""
        self.completion_tokens += tokens
        if self.first_token is None:
            self.first_token = now
        if choice in self._last and tokens:
            self.token_gaps.append((now - self._last[choice], tokens))
        first, counted = self._counted.get(choice, (now, 0))
        self._counted[choice] = first, counted + tokens
        self._last[choice] = now

    def mean_gaps(self) -> list[float]:
        """Return the mean time between two tokens of each choice that has two or more, in seconds."""
        return [
            (self._last[choice] - first) / (tokens - 1)
            for choice, (first, tokens) in self._counted.items()
            if tokens > 1 and self._last[choice] > first
        ]

    def finished(self, reason: str) -> None:
        """Record that a choice ended, or that the client disconnected from a stream ("disconnect")."""
        self.finish_reasons.append(reason)
