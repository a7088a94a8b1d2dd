"""The spans of one step of an engine, made from its record."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.protocol.messages import EngineInfo, OpWork, TracedStep
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.span import Attributes, AttributeValue, Span, SpanLink
from plimsoll_telemetry.trace_context import TraceContext

PRODUCTS = frozenset({"qkv", "output", "gate_up", "down", "experts", "head"})
"""Kinds of ops that multiply with weights."""
ATTENTION, HEAD = "attention", "head"
WAIT = "wait for ranks"
AROUND = "around"
"""The rest of the forward pass, between its ops."""


class StepSpans:
    """Makes the spans of one step: the step, its phases, and in the forward pass its ops by kind.

    An op's span has the time of all ops of its kind, which alternate layer by layer: only its length is measured, not
    its place within the forward pass. Ops that were not measured have no span; the forward pass then has the operations
    and bytes of each kind by the cost model as attributes. In a group, the time in which rank 0 waited for others is a
    span too.
    """

    def __init__(
        self,
        step: TracedStep,
        info: EngineInfo,
        about: Attributes,
        context: TraceContext,
        links: Sequence[SpanLink],
        offset_ns: int,
    ) -> None:
        """`offset_ns` turns the monotonic clock into Unix time."""
        self._step = step
        self._info = info
        self._about = about
        self._context = context
        self._links = links
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        context, step = self._context, self._step
        root = Span(
            "engine step",
            context.trace_id,
            context.span_id,
            0,
            step.start_ns + self._offset_ns,
            step.end_ns + self._offset_ns,
            self._attributes(),
            links=self._links,
        )
        spans = [root]
        for phase, start_ns, end_ns in step.phases:
            spans += self._of_phase(root, StepPhase(phase), start_ns + self._offset_ns, end_ns + self._offset_ns)
        return spans

    def _attributes(self) -> Attributes:
        step, info = self._step, self._info
        found: dict[str, AttributeValue] = {
            **self._about,
            names.REASON: step.why.name.lower(),
            names.TOKENS: step.tokens,
            names.SEQUENCES: step.sequences,
            names.DEVICE: info.device,
            names.ATTENTION_BACKEND: info.attention_backend,
            names.FLOPS: sum(op.flops for op in step.ops),
            names.BYTES: sum(op.nbytes for op in step.ops),
        }
        if step.usual_seconds is not None:
            found[names.USUAL_SECONDS] = step.usual_seconds
        if len(step.request_ids) < step.sequences:
            found[names.LEFT_OUT] = step.sequences - len(step.request_ids)
        return {name: value for name, value in found.items() if value != 0}

    def _of_phase(self, root: Span, phase: StepPhase, start_ns: int, end_ns: int) -> list[Span]:
        attributes: dict[str, AttributeValue] = {}
        if phase is StepPhase.INPUTS:
            copies = (
                (names.SPILLED_BLOCKS, self._step.spilled),
                (names.RESTORED_BLOCKS, self._step.restored),
                (names.COPIED_BLOCKS, self._step.copied),
            )
            attributes |= {name: count for name, count in copies if count}
        elif phase is StepPhase.HEAD:
            attributes |= next((self._of_op(op) for op in self._step.ops if op.kind == HEAD), {})
        if phase is not StepPhase.FORWARD:
            return [root.child(phase.name.lower(), start_ns, end_ns, attributes)]
        ops = [op for op in self._step.ops if op.kind != HEAD]
        measured = [op for op in ops if op.seconds]
        if not measured:
            for op in ops:
                attributes |= {f"{name}.{op.kind}": value for name, value in self._of_op(op).items()}
        if self._step.waited:
            attributes[names.WAITED_SECONDS] = [seconds for _, seconds in sorted(self._step.waited.items())]
            if seconds := self._step.waited.get(0):
                measured = [*measured, OpWork(WAIT, seconds, 0, 0)]
        forward = root.child(phase.name.lower(), start_ns, end_ns, attributes)
        return [forward, *self._of_ops(forward, measured)]

    def _of_ops(self, forward: Span, ops: Sequence[OpWork]) -> list[Span]:
        """Return a span for each op, one after the other, and one for the rest of the forward pass."""
        spans: list[Span] = []
        start_ns = forward.start_ns
        for op in ops:
            end_ns = min(forward.end_ns, start_ns + round((op.seconds or 0.0) * 1e9))
            spans.append(forward.child(op.kind, start_ns, end_ns, {} if op.kind == WAIT else self._of_op(op)))
            start_ns = end_ns
        if spans and start_ns < forward.end_ns:
            spans.append(forward.child(AROUND, start_ns, forward.end_ns))
        return spans

    def _of_op(self, op: OpWork) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {names.FLOPS: op.flops, names.BYTES: op.nbytes}
        if op.kind in PRODUCTS:
            found[names.SCHEME] = self._info.dtype
        elif op.kind == ATTENTION:
            found[names.ATTENTION_BACKEND] = self._info.attention_backend
        return found
