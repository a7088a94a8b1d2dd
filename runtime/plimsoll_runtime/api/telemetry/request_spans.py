"""The spans of one request in a server and its engine, made from its record once it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plimsoll_runtime.api.telemetry.engine_stages import WAITS, Stage, StageName, stages_of
from plimsoll_runtime.api.telemetry.request_record import ENGINE_PHASES, RequestRecord
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phase
from plimsoll_telemetry.server_span import HttpRequest, server_span
from plimsoll_telemetry.span import NONE, Attributes, AttributeValue, Span, SpanEvent


class RequestSpans:
    """Makes the spans of one request: the request itself, its phases in the server, and in the phase that waits for the
    engine the stages of each choice.

    `offset_ns` turns the monotonic clock into Unix time.
    """

    def __init__(self, record: RequestRecord, request: HttpRequest, offset_ns: int) -> None:
        self._record = record
        self._request = request
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        record = self._record
        assert record.span is not None
        request = server_span(
            self._request,
            record.span,
            record.parent_id,
            record.phases,
            self._offset_ns,
            self._attributes(),
            tuple(record.steps),
        )
        spans = [request]
        for phase in record.phases.all():
            spans += self._of_phase(request, phase)
        return spans

    def _attributes(self) -> dict[str, AttributeValue]:
        record = self._record
        found: dict[str, AttributeValue] = {}
        if record.model:
            found |= {names.REQUEST_MODEL: record.model, names.RESPONSE_MODEL: record.model}
        if record.key is not None:
            found |= {names.NAMESPACE: record.key.namespace, names.MODEL: record.key.name}
        if record.prompt_tokens:
            found |= {
                names.INPUT_TOKENS: record.prompt_tokens,
                names.CACHED_TOKENS: record.cached_tokens,
                names.OUTPUT_TOKENS: record.completion_tokens,
            }
        if record.finish_reasons:
            found[names.FINISH_REASONS] = record.finish_reasons
        if record.content is not None:
            messages = (
                (names.INPUT_MESSAGES, record.content.input_messages()),
                (names.OUTPUT_MESSAGES, record.content.output_messages()),
            )
            found |= {name: text for name, text in messages if text}
        return found | record.asked

    def _of_phase(self, request: Span, phase: Phase) -> Iterator[Span]:
        span = self._child(request, phase.name, phase.start_ns, phase.end_ns)
        yield span
        if phase.name not in ENGINE_PHASES:
            return
        for choice, marks in self._record.marks.items():
            stages = stages_of(marks)
            if stages and stages[0].start_ns > phase.start_ns:
                yield self._child(span, "submit", phase.start_ns, stages[0].start_ns, {names.CHOICE: choice})
            for stage in stages:
                yield self._of_stage(span, stage, choice, phase.end_ns)
            if stages and (ended := stages[-1].end_ns) is not None and ended < phase.end_ns:
                yield self._child(span, "deliver", ended, phase.end_ns, {names.CHOICE: choice})

    def _of_stage(self, phase: Span, stage: Stage, choice: int, phase_end_ns: int) -> Span:
        attributes: dict[str, AttributeValue] = {names.CHOICE: choice}
        if stage.name in WAITS:
            attributes[names.REASON] = stage.why.name.lower()
        elif stage.name is StageName.PREFILL:
            attributes[names.FOUND_TOKENS] = stage.found
        end_ns = phase_end_ns if stage.end_ns is None else stage.end_ns
        return self._child(phase, stage.name.value, stage.start_ns, end_ns, attributes, self._chunks(stage))

    def _chunks(self, stage: Stage) -> list[SpanEvent]:
        return [
            SpanEvent("chunk", chunk.at_ns + self._offset_ns, {names.TOKENS: chunk.tokens}) for chunk in stage.chunks
        ]

    def _child(
        self,
        parent: Span,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes = NONE,
        events: Sequence[SpanEvent] = (),
    ) -> Span:
        return parent.child(name, start_ns + self._offset_ns, end_ns + self._offset_ns, attributes, events)
