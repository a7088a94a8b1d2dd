"""The engine process's side of a parallel group's steps."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, ScheduledSequence, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepDurations, Timeline
from plimsoll_runtime.execution.sampling.state import draw_of
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, Report, StepDone, StepShort, encoded


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


class RankLostError(Exception):
    """A rank has ended or hangs."""


STACKS_SECONDS = 0.2
"""Time for hung ranks to write their stacks before they are killed."""


class GroupRunner:
    """A `Runner` whose steps are computed by all ranks of a group. Rank 0 samples the tokens.

    Each step waits for all ranks, so a step that one rank could not compute is one of the whole group. `timeline` gets
    the phases of rank 0.
    """

    def __init__(self, ranks: Sequence[RankLink], timeline: Timeline, durations: StepDurations) -> None:
        """`durations`: how long a step may take before a rank counts as hung."""
        self._ranks = ranks
        self._durations = durations
        self._timeline = timeline
        self._last: dict[int, int] = {}
        self._poll = select.poll()
        self._by_fd = {rank.channel.fileno(): number for number, rank in enumerate(ranks)}
        for descriptor in self._by_fd:
            self._poll.register(descriptor, select.POLLIN)

    def run(self, plan: StepPlan) -> StepResult:
        """Run a step on all ranks and wait for them.

        Raises StepMemoryError if a rank had too little memory for it, RankLostError if a rank has ended or hangs.
        """
        tokens, began = plan.num_tokens, time.monotonic()
        self._send(plan)
        reports = self._reports(self._durations.allow(tokens))
        if tokens:
            self._durations.learn(tokens, time.monotonic() - began)
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
        for descriptor, _ in self._poll.poll(0):
            rank = self._ranks[self._by_fd[descriptor]]
            try:
                report = rank.channel.receive()
            except ChannelClosed as error:
                raise RankLostError(str(rank.death())) from error
            raise RankLostError(str(rank.failure(report)))

    def _send(self, plan: StepPlan) -> None:
        first = encoded(plan)
        # Most plans of decodes are the same for all ranks, and are encoded once.
        alike = not plan.new_slots and all(each.token_ids[0] != LAST_CHOSEN for each in plan.sequences)
        others = first if alike else encoded(of_member(plan, self._last))
        messages = [first, *[others] * (len(self._ranks) - 1)]
        for rank, message in zip(self._ranks, messages, strict=True):
            try:
                rank.channel.send(message)
            except ChannelClosed as error:
                raise RankLostError(str(rank.death())) from error

    def _reports(self, seconds: float) -> list[Report]:
        """Wait for a report of each rank, at most `seconds` (0: as long as it takes).

        If a rank ends, the others are not waited for.
        """
        reports: dict[int, Report] = {}
        due = time.monotonic() + seconds
        while len(reports) < len(self._ranks):
            ready = self._poll.poll(max(0.0, due - time.monotonic()) * 1e3 if seconds else None)
            if not ready:
                raise self._hung(seconds, [rank for number, rank in enumerate(self._ranks) if number not in reports])
            for descriptor, _ in ready:
                number = self._by_fd[descriptor]
                rank = self._ranks[number]
                try:
                    report = rank.channel.receive()
                except ChannelClosed as error:
                    raise RankLostError(str(rank.death())) from error
                if not isinstance(report, StepDone | StepShort):
                    raise RankLostError(str(rank.failure(report)))
                reports[number] = report
        return [reports[number] for number in range(len(self._ranks))]

    def _hung(self, seconds: float, late: Sequence[RankLink]) -> RankLostError:
        """Return the error for a step without the reports of these ranks. The others wait for those that have begun the
        fewest sums.
        """
        sums = [rank.sums for rank in late]
        names = [rank.name for rank, begun in zip(late, sums, strict=True) if begun == min(sums)]
        for rank in late:
            rank.show_stacks()
        time.sleep(STACKS_SECONDS)
        return RankLostError(
            f"rank {' and rank '.join(names)} hangs: a step took more than {seconds:.1f} s; if such steps are normal "
            "here, raise --step-timeout"
        )


def of_member(plan: StepPlan, last_tokens: Mapping[int, int]) -> StepPlan:
    """Return a plan for a rank that samples nothing: with `draws` in place of parameters and prompts, and with the
    tokens that rank 0 sampled, by slot, in place of LAST_CHOSEN.
    """
    sequences = [_known(sequence, last_tokens) for sequence in plan.sequences]
    return replace(plan, new_slots=(), draws=[draw_of(init) for init in plan.new_slots], sequences=sequences)


def _known(sequence: ScheduledSequence, last_tokens: Mapping[int, int]) -> ScheduledSequence:
    if sequence.token_ids[0] != LAST_CHOSEN:
        return sequence
    return msgspec.structs.replace(sequence, token_ids=(last_tokens[sequence.slot],))
