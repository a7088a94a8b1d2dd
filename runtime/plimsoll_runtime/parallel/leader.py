"""The engine process's side of a parallel group's steps."""

from __future__ import annotations

import select
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, Launched, ScheduledSequence, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepDurations, Timeline
from plimsoll_runtime.execution.sampling.state import draw_of
from plimsoll_runtime.parallel.channel import (
    BackendFailed,
    Channel,
    ChannelClosed,
    Report,
    StepDone,
    StepShort,
    encoded,
)
from plimsoll_runtime.parallel.losses import LossCause, LossError, RankLostError, cause_of


class RankLink(Protocol):
    """A rank's process, as the engine process sees it."""

    channel: Channel

    @property
    def name(self) -> str:
        """Its number, and its member if that is on another machine, for messages."""

    @property
    def sums(self) -> int:
        """Number of sums over all ranks that it has begun so far; -1 if its machine does not answer."""

    def show_stacks(self) -> None:
        """Log the stacks of its threads, if it is able to."""

    def death(self) -> Exception:
        """Return the error for a rank whose channel was closed."""

    def failure(self, report: Report) -> Exception:
        """Return the error for a report that is no result of a step."""


CAUSE_SECONDS = 0.3
"""Time for the end of a rank to be noticed that made another one fail."""
STACKS_SECONDS = 0.2
"""Time for hung ranks to write their stacks before they are killed."""


class GroupRunner:
    """A `Runner` whose steps are computed by all ranks of a group. Rank 0 samples the tokens.

    A step's result waits for all ranks, so a step that one rank could not compute is one of the whole group. With
    several stages, steps of other sequences may be started before: each rank computes them in order. `timeline` gets
    the phases of rank 0.
    """

    def __init__(
        self,
        ranks: Sequence[RankLink],
        timeline: Timeline,
        durations: StepDurations,
        tensor: int | None = None,
        waited: MutableMapping[int, float] | None = None,
    ) -> None:
        """`durations`: how long a step may take before a rank counts as hung. `tensor`: ranks of each stage of a
        pipeline; None: there is one stage. `waited`: seconds in which ranks have waited for others, by rank, to which
        those of each step are added.
        """
        self._waited = {} if waited is None else waited
        self._ranks = ranks
        self._tensor = tensor or len(ranks)
        self._ended = 0.0
        self._is_lost = False
        self._durations = durations
        self._timeline = timeline
        self._last: dict[int, int] = {}

    def run(self, plan: StepPlan) -> Launched:
        """Start a step on all ranks, after those that were started before. With one stage, wait for its result, because
        the next plan may need its tokens.

        Raises RankLostError if a rank has ended, with one stage also the errors of `finish`.
        """
        began = time.monotonic()
        try:
            self._send(plan)
        except RankLostError:
            self._is_lost = True
            raise
        return self.finish(plan, began) if self._tensor == len(self._ranks) else GroupStep(self, plan, began)

    def finish(self, plan: StepPlan, began: float) -> StepResult:
        """Wait for a step that began at a time of the monotonic clock. Call it in the order of the steps.

        Raises StepMemoryError if a rank had too little memory for it, RankLostError if a rank has ended or hangs, also
        in an earlier step.
        """
        if self._is_lost:
            raise RankLostError("a rank was lost in an earlier step")
        tokens = plan.num_tokens
        try:
            reports = self._reports(self._durations.allow(tokens))
        except RankLostError:
            self._is_lost = True
            raise
        began, self._ended = max(began, self._ended), time.monotonic()
        if tokens:
            self._durations.learn(tokens, self._ended - began)
        for number, report in enumerate(reports):
            if isinstance(report, StepDone) and report.waited is not None:
                self._waited[number] = self._waited.get(number, 0.0) + report.waited
        for report in reports:
            if isinstance(report, StepShort):
                raise StepMemoryError(report.message)
        first = reports[0]
        assert isinstance(first, StepDone)
        for phase, nanoseconds in first.phases:
            self._timeline.lap_of(phase, nanoseconds)
        for sequence, output in zip(plan.sequences, first.outputs, strict=True):
            if sequence.sample:
                self._last[sequence.slot] = output.token_id or 0
        return StepResult(first.outputs, first.attention_fallbacks)

    def check(self) -> None:
        """Raise RankLostError if a rank has ended. Call it while no step runs."""
        for number in self._polled(range(len(self._ranks)), 0):
            rank = self._ranks[number]
            failure = rank.failure(self._received(rank))
            raise RankLostError(str(failure), LossCause.RANK_ENDED) from failure

    def _send(self, plan: StepPlan) -> None:
        if any(each.token_ids[0] == LAST_CHOSEN for each in plan.sequences):
            plan = replace(plan, sequences=[self._known(sequence) for sequence in plan.sequences])
        first = encoded(plan)
        # Most plans are the same for all ranks, and are encoded once.
        others = encoded(of_member(plan)) if plan.new_slots else first
        # The last ranks are those of the first stage.
        for number, rank in reversed(list(enumerate(self._ranks))):
            try:
                rank.channel.send(others if number else first)
            except ChannelClosed as error:
                raise _lost(rank.death()) from error

    def _known(self, sequence: ScheduledSequence) -> ScheduledSequence:
        """Return a sequence with the token that rank 0 sampled in place of LAST_CHOSEN."""
        if sequence.token_ids[0] != LAST_CHOSEN:
            return sequence
        return msgspec.structs.replace(sequence, token_ids=(self._last[sequence.slot],))

    def _reports(self, seconds: float) -> list[Report]:
        """Wait for a report of each rank, at most `seconds` (0: as long as it takes).

        If a rank ends, the others are not waited for.
        """
        reports: dict[int, Report] = {}
        due = time.monotonic() + seconds
        while missing := [number for number in range(len(self._ranks)) if number not in reports]:
            # Ranks may have sent the reports of later steps as well.
            ready = [number for number in missing if self._has_report(number)]
            if not ready:
                ready = self._polled(missing, max(0.0, due - time.monotonic()) * 1e3 if seconds else None)
            if not ready:
                raise self._hung(seconds, [self._ranks[number] for number in missing])
            for number in ready:
                rank = self._ranks[number]
                report = self._received(rank)
                if not isinstance(report, StepDone | StepShort):
                    failure = self._cause(rank, report)
                    # A rank that sends an error ends.
                    cause = failure.cause if isinstance(failure, LossError) else LossCause.RANK_ENDED
                    raise RankLostError(str(failure), cause) from failure
                reports[number] = report
        return [reports[number] for number in range(len(self._ranks))]

    @staticmethod
    def _received(rank: RankLink) -> Report:
        """Return the next report of a rank. Raises RankLostError if it has ended."""
        try:
            report: Report = rank.channel.receive()
        except ChannelClosed as error:
            raise _lost(rank.death()) from error
        return report

    def _cause(self, failed: RankLink, report: Report) -> Exception:
        """Return the error of a rank that has failed, or of another one, whose end may be the cause."""
        if isinstance(report, BackendFailed):
            return failed.failure(report)
        others = [number for number, rank in enumerate(self._ranks) if rank is not failed]
        due = time.monotonic() + CAUSE_SECONDS
        while others and (ready := self._polled(others, max(0.0, due - time.monotonic()) * 1e3)):
            for number in ready:
                try:
                    found = self._ranks[number].channel.receive()
                except ChannelClosed:
                    return self._ranks[number].death()
                if isinstance(found, BackendFailed):
                    return self._ranks[number].failure(found)
                if not isinstance(found, StepDone | StepShort):
                    others.remove(number)
        return failed.failure(report)

    def _has_report(self, number: int) -> bool:
        """Return whether a rank's report has arrived, or something that is no message."""
        try:
            return self._ranks[number].channel.has_message
        except ChannelClosed:
            return True

    def _polled(self, ranks: Sequence[int], milliseconds: float | None) -> list[int]:
        """Return those of the ranks whose channels can be read, after at most this time."""
        poll = select.poll()
        by_fd = {self._ranks[number].channel.fileno(): number for number in ranks}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        return [by_fd[descriptor] for descriptor, _ in poll.poll(milliseconds)]

    def _hung(self, seconds: float, late: Sequence[RankLink]) -> RankLostError:
        """Return the error for a step without the reports of these ranks. The others wait for those of the first stage
        among them that have begun the fewest sums.
        """
        late = self._first_stage(late)
        sums = [rank.sums for rank in late]
        names = [rank.name for rank, begun in zip(late, sums, strict=True) if begun == min(sums)]
        for rank in late:
            rank.show_stacks()
        time.sleep(STACKS_SECONDS)
        return RankLostError(
            f"rank {' and rank '.join(names)} hangs: a step took more than {seconds:.1f} s; if such steps are normal "
            "here, raise --step-timeout",
            LossCause.RANK_HUNG,
        )

    def _first_stage(self, late: Sequence[RankLink]) -> list[RankLink]:
        """Return the late ranks of the first stage that has some. The first stage has the last ranks."""
        numbers = [number for number, rank in enumerate(self._ranks) if rank in late]
        first = numbers[-1] // self._tensor
        return [self._ranks[number] for number in numbers if number // self._tensor == first]


class GroupStep:
    """A step that a group computes (`plan.Launched`)."""

    def __init__(self, runner: GroupRunner, plan: StepPlan, began: float) -> None:
        self._runner = runner
        self._plan = plan
        self._began = began

    @property
    def ready(self) -> bool:
        return False

    def result(self) -> StepResult:
        """Wait for the result. Raises StepMemoryError, RankLostError."""
        return self._runner.finish(self._plan, self._began)


def _lost(death: Exception) -> RankLostError:
    return RankLostError(str(death), cause_of(death))


def of_member(plan: StepPlan) -> StepPlan:
    """Return a plan for a rank that samples nothing: with `draws` in place of parameters and prompts."""
    return replace(plan, new_slots=(), draws=[draw_of(init) for init in plan.new_slots])
