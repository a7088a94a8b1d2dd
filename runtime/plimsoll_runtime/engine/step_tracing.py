"""Chooses the steps that are recorded for traces, and records them. The loop writes numbers only; see `TracedStep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from plimsoll_runtime.engine.protocol.messages import MOST_TRACED_REQUESTS, OpWork, StepReason, TracedStep
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase, Timeline


@dataclass(frozen=True, slots=True)
class StepTracing:
    """Which steps are recorded: one of `every` (0: none), and those that take `slow` times as long as steps of their
    size usually do (0: none).
    """

    every: int
    slow: float


class OpMeter(Protocol):
    """Tells the work of a step's ops."""

    def begin(self) -> None:
        """Start to measure the seconds of ops, if they can be measured."""

    def work(self, plan: StepPlan, *, measured: bool) -> list[OpWork]:
        """Return the work of a step's ops by kind, without seconds unless they were `measured` since `begin`."""


class StepTracer:
    """Records chosen steps. Call `begin` before a step's result is requested, `judge` with its duration, and `end` when
    its outputs are complete. A step that fails is not judged, and not recorded.

    If steps overlap (`overlapping`), seconds of ops are not measured, because the next step may have begun, and
    planning is not among the phases, because it is that of a later step.
    """

    def __init__(
        self,
        tracing: StepTracing,
        timeline: Timeline,
        runner_timeline: Timeline | None,
        ops: OpMeter | None = None,
        *,
        overlapping: bool = False,
        waited: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        """`runner_timeline`: None if the runner's phases are in `timeline`. `waited`: returns the seconds in which each
        rank of a group has waited for others so far.
        """
        self._tracing = tracing
        self._timeline = timeline
        self._runner_timeline = runner_timeline
        self._ops = ops
        self._overlapping = overlapping
        self._waited = waited
        self._waited_before: Mapping[int, float] = {}
        self._steps = 0
        self._runner_step = 0
        self._why: StepReason | None = None
        self._usual: float | None = None
        self._began_ns: int | None = None

    def submitted(self, *, alone: bool) -> None:
        """Record that a step was passed to the runner; `alone`: after the results of all earlier ones."""
        if alone and self._runner_timeline is not None:
            self._runner_step = self._runner_timeline.step

    def begin(self, tokens: int) -> None:
        """Decide whether the next step, of `tokens` tokens, is recorded."""
        self._why = self._usual = self._began_ns = None
        self._runner_step += 1
        if not tokens:
            return
        self._steps += 1
        if self._tracing.every and self._steps % self._tracing.every == 0:
            self._why = StepReason.SAMPLED
            if not self._overlapping:
                self._waited_before = self._waited()
                if self._ops is not None:
                    self._ops.begin()

    def judge(self, began_ns: int, seconds: float, usual: float | None) -> None:
        """Record the step also if it took much longer than `usual`, the mean of its size."""
        self._began_ns, self._usual = began_ns, usual
        if usual is not None and self._tracing.slow and seconds > self._tracing.slow * usual and self._why is None:
            self._why = StepReason.SLOW

    def end(self, plan: StepPlan, tokens: int, request_ids: Callable[[], Sequence[str]]) -> TracedStep | None:
        """Return the record of the step; None if it was not chosen, or was not judged because it failed."""
        why, began_ns = self._why, self._began_ns
        if why is None or began_ns is None:
            return None
        phases = self._phases()
        measured = why is StepReason.SAMPLED and not self._overlapping
        return TracedStep(
            why,
            min([began_ns, *(phase.start_ns for phase in phases)]),
            max([began_ns, *(phase.end_ns for phase in phases)]),
            tokens,
            len(plan.sequences),
            [(phase.phase.value, phase.start_ns, phase.end_ns) for phase in phases],
            list(request_ids()[:MOST_TRACED_REQUESTS]),
            self._usual,
            len(plan.spills),
            len(plan.restores),
            len(plan.block_copies) + len(plan.moves),
            [] if self._ops is None else self._ops.work(plan, measured=measured),
            self._waited_since() if measured else {},
        )

    def _waited_since(self) -> dict[int, float]:
        before = self._waited_before
        return {rank: seconds - before.get(rank, 0.0) for rank, seconds in self._waited().items()}

    def _phases(self) -> list[PhaseSpan]:
        own = self._timeline.of_step(self._timeline.step)
        if self._runner_timeline is None:
            return own
        kept = (StepPhase.COMMIT,) if self._overlapping else (StepPhase.SCHEDULE, StepPhase.COMMIT)
        found = [*self._runner_timeline.of_step(self._runner_step), *(each for each in own if each.phase in kept)]
        return sorted(found, key=lambda phase: phase.start_ns)
