"""Traces of placement decisions, made from a plan and the times of its phases after it was carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plimsoll_operator.placement.records.action import Action
from plimsoll_operator.placement.records.plan import Plan, Refusal
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phase, Phases
from plimsoll_telemetry.span import Span, SpanEvent, unix_offset_ns
from plimsoll_telemetry.trace_context import TraceContext
from plimsoll_telemetry.tracer import Tracer

OBSERVE, PLAN, APPLY = "observe", "plan", "apply"
MOST_EVENTS = 128
"""Actions and refusals of a decision that are named; `plimsoll.actions` and `plimsoll.refusals` count all."""


class PlacementTraces:
    """Sends a trace for each plan that decides something: it has actions, or refuses models that the one before did not
    refuse for this reason.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def ended(
        self,
        pool: ObjectKey,
        plan: Plan,
        before: Mapping[ObjectKey, Refusal],
        phases: Phases,
        hosts: int,
        error: BaseException | None = None,
    ) -> None:
        """Report a plan after it was carried out, or failed to be with `error`. `before`: the refusals of the plan
        before; `hosts`: number of hosts.
        """
        refusals = [one for one in plan.refusals if not _refused(before, one)]
        if not plan.actions and not refusals:
            return
        span = self._tracer.sampler.begin(None)
        if span.sampled:
            what = None if error is None else type(error).__name__
            spans = PlacementSpans(span, pool, plan.actions, refusals, phases.all(), hosts, what, unix_offset_ns())
            self._tracer.finish(spans)


class PlacementSpans:
    """Makes the spans of a decision: the decision, and its phases. The plan's span has an event for each action and for
    each model that is refused, with the reason.
    """

    def __init__(
        self,
        context: TraceContext,
        pool: ObjectKey,
        actions: Sequence[Action],
        refusals: Sequence[Refusal],
        phases: Sequence[Phase],
        hosts: int,
        error: str | None,
        offset_ns: int,
    ) -> None:
        """`offset_ns` turns the monotonic clock into Unix time."""
        self._context = context
        self._pool = pool
        self._actions = actions
        self._refusals = refusals
        self._phases = phases
        self._hosts = hosts
        self._error = error
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        root = Span(
            "place models",
            self._context.trace_id,
            self._context.span_id,
            0,
            self._phases[0].start_ns + self._offset_ns,
            self._phases[-1].end_ns + self._offset_ns,
            {
                names.NAMESPACE: self._pool.namespace,
                names.POOL: self._pool.name,
                names.HOSTS: self._hosts,
                names.ACTIONS: len(self._actions),
                names.REFUSALS: len(self._refusals),
                names.MODELS: sorted({str(one.model) for one in (*self._actions, *self._refusals)})[:MOST_EVENTS],
            },
            error=self._error,
        )
        return [root, *(self._of_phase(root, phase) for phase in self._phases)]

    def _of_phase(self, root: Span, phase: Phase) -> Span:
        start_ns, end_ns = phase.start_ns + self._offset_ns, phase.end_ns + self._offset_ns
        return root.child(
            phase.name,
            start_ns,
            end_ns,
            events=list(self._events(end_ns))[:MOST_EVENTS] if phase.name == PLAN else (),
            error=self._error if phase is self._phases[-1] else None,
        )

    def _events(self, at_ns: int) -> Iterator[SpanEvent]:
        for action in self._actions:
            about = {names.MODEL: str(action.model), names.HOST: str(action.host), names.REASON: action.because.value}
            yield SpanEvent(type(action).__name__.lower(), at_ns, {**about, names.EXPLANATION: action.why})
        for refusal in self._refusals:
            about = {names.MODEL: str(refusal.model), names.REASON: refusal.reason.value}
            yield SpanEvent("refuse", at_ns, {**about, names.EXPLANATION: refusal.message})


def _refused(before: Mapping[ObjectKey, Refusal], refusal: Refusal) -> bool:
    found = before.get(refusal.model)
    return found is not None and found.reason is refusal.reason
