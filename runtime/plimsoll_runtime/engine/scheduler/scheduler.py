"""The scheduler: plans each step, applies its result, and builds the messages to clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.kv.offload.costs import Costs
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    EngineStats,
    LogprobEntry,
    MarkKind,
    RequestOutput,
    WaitReason,
    pack,
)
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.admission import Admission, Arrivals
from plimsoll_runtime.engine.scheduler.batch_builder import BatchBuilder, Step
from plimsoll_runtime.engine.scheduler.policies import FirstComeFirstServed, Policy
from plimsoll_runtime.engine.scheduler.running import RunningSequences
from plimsoll_runtime.engine.scheduler.stats import Counters, engine_stats
from plimsoll_runtime.engine.scheduler.waiting_queue import DeadlineQueue
from plimsoll_runtime.engine.sequence import Phase, SequenceState
from plimsoll_runtime.errors import UsageError


def token_message(
    sequence: SequenceState, tokens: list[int], logprob: LogprobEntry | None, reason: str | None
) -> RequestOutput | None:
    """Return the message with a sequence's new tokens, and `reason` if the last one ends it.

    A request's first message also has its prompt log probabilities and cached tokens. With `final_only`, return None
    before the end, and all tokens in one message then.
    """
    report = sequence.report
    answered, report.answered = report.answered, True
    if report.final_only:
        if reason is None:
            return None
        answered, tokens = False, sequence.output_ids
    stop_token_id = tokens[-1] if reason == "stop" else None
    logprobs = [] if logprob is None else [logprob]
    marks = report.take_marks() if report.marks else []
    if answered:
        return RequestOutput(sequence.request_id, tokens, logprobs, None, reason, stop_token_id, marks=marks)
    return RequestOutput(
        sequence.request_id,
        tokens,
        logprobs,
        report.prompt_logprobs,
        reason,
        stop_token_id,
        report.cached_tokens,
        marks=marks,
    )


def deadline_message(sequence: SequenceState) -> RequestOutput:
    """Return the message that the deadline of a sequence has passed."""
    place = "while its prompt was computed" if sequence.report.admitted else "while it waited in the queue"
    error = f"the deadline of {sequence.context.params.deadline:g} s passed before the first token, {place}"
    marks = sequence.report.take_marks()
    return RequestOutput(sequence.request_id, finish_reason="deadline", error=error, marks=marks)


def record_prompt_logprobs(sequence: SequenceState, entry: ScheduledSequence, output: SequenceOutput) -> None:
    """Keep the prompt log probabilities of positions that were not scored before (a preemption may repeat some)."""
    report = sequence.report
    assert report.prompt_logprobs is not None
    new = output.prompt_logprobs[max(0, report.scored - entry.start) :]
    report.prompt_logprobs.extend(pack(new))
    report.scored += len(new)


NO_MEMORY = "the device has too little free memory to compute this request, even alone in a batch"
ALONE_TRIES = 3
"""A sequence that finds too little memory alone, this many times at the same position, ends with NO_MEMORY."""
LOST_EACH_TIME = "each time that it was computed, at last alone, the processes that compute the model ended"
MOST_LOSSES = 10
"""Most losses of a sequence without a new token in between. If it is lost more often, steps get smaller, until it is
lost alone and ends with LOST_EACH_TIME: it may be the cause."""


class Scheduler:
    """Waiting and running sequences, with the blocks and slots that they hold.

    With `tiers`, a sequence leaves the queue while its prefix is read from disk, and others may pass it. `clock` gives
    nanoseconds and is the clock of requests' arrival times.

    Once it runs, the sequence with the lowest order key is in every step (with `Limits.paced`, up to three steps in a
    row compute only prompts). Until then running sequences end one by one, or are preempted if the policy does that.
    Every policy moves sequences ahead by a bounded distance only, so every request becomes the first and ends.

    `schedule` and `commit` are separate: a step may be planned while earlier ones run, if steps run and are committed
    in the order of planning. A sequence whose token is not known yet continues with `LAST_CHOSEN`; the runner knows the
    token by then. If that token ends the sequence (a stop token, an error), its part of later steps is discarded: the
    row is computed, and its blocks are not reused before that.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        tiers: TierIndex | None = None,
    ) -> None:
        self._policy = policy = policy or FirstComeFirstServed()
        self._kv = KvCacheManager(
            limits.num_blocks,
            limits.block_size,
            prefix_caching=limits.prefix_caching,
            tiers=tiers,
            rules=limits.groups,
            snapshots=limits.snapshots,
            worth=limits.snapshot_worth,
        )
        self._clock = clock
        self._counters = Counters()
        self._sequences: dict[str, SequenceState] = {}
        self._arrivals = Arrivals(limits, policy, self._kv, self._counters, clock)
        self._running = RunningSequences(self._kv, limits.max_sequences)
        update_key = self._arrivals.update_key
        self._admission = Admission(limits, policy, self._kv, self._running, self._counters, update_key, clock)
        self._batching = BatchBuilder(limits, self._kv, self._running, self._admission, self._counters)
        self._deadlines = DeadlineQueue()
        self._committed_ns = 0
        self._commit_ns = 0
        self._whole_prompts = limits.whole_prompts
        self._alone = (("", 0), 0)
        self._losses: dict[str, int] = {}
        self._wanted_blocks: int | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises UsageError for an id that is in use; `limits.check_request` has checked the rest."""
        if request.request_id in self._sequences:
            raise UsageError(f"request id {request.request_id!r} is in use; give every request a unique id")
        sequence = self._arrivals.sequence(request)
        self._sequences[sequence.request_id] = sequence
        self._deadlines.add(sequence)
        self._admission.add(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown ids are ignored. Their part of steps in progress is discarded."""
        now = self._clock()
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                self._finish(sequence, now)
        self._running.drop_finished()

    def expire(self) -> list[RequestOutput]:
        """End the requests whose deadline has passed before their first token, and return the messages to their
        clients.
        """
        if not self._deadlines:
            return []
        now = self._clock()
        missed = self._deadlines.pop_missed(now)
        for sequence in missed:
            self._finish(sequence, now)
        if missed:
            self._counters.expired += len(missed)
            self._running.drop_finished()
        return [deadline_message(sequence) for sequence in missed]

    def forget_prefixes(self) -> None:
        """Remove every block from the prefix cache and the tiers, and all state snapshots."""
        self._kv.forget_all()

    def resize(self, num_blocks: int) -> None:
        """Change the number of blocks, the padding block included; the last call counts.

        Free blocks are removed in the next step, the others when sequences end or are preempted.
        """
        self._wanted_blocks = num_blocks

    @property
    def resizing(self) -> bool:
        """Whether the requested number of blocks has not been planned completely yet."""
        return self._wanted_blocks is not None

    def await_prefetches(self, seconds: float) -> None:
        """Wait until the disk has read or written a block, for at most `seconds`; return immediately if no sequence
        waits for the disk.
        """
        self._admission.prefetches.wait(seconds)

    def schedule(self) -> Step | None:
        """Plan the next step. Return None if nothing can be computed before another step is committed."""
        self._kv.begin_step()
        if self._wanted_blocks is not None and (resize := self._resize(self._wanted_blocks)) is not None:
            return resize
        self._admission.begin_step()
        build = self._batching.plan()
        self._admission.look_ahead()
        if not build.entries:
            return None
        changes, merges = self._kv.changes, self._kv.sharing.end_step()
        freed = self._running.slots.collect_freed()
        rows = None if self._kv.snapshots is None else self._kv.snapshots.rows
        plan = StepPlan(
            build.entries,
            freed,
            build.new_slots,
            changes.copies,
            changes.spills,
            changes.restores,
            idle_steps=self._kv.end_step(),
            resumes=() if rows is None else rows.resumes,
            snapshots=() if rows is None else rows.saves,
        )
        return Step(plan, build.sequences, merges, build.tokens, self._clock())

    def _resize(self, wanted: int) -> Step | None:
        """Return a step that changes the number of blocks as far as possible; None if it is not possible or not
        necessary.

        The step computes no sequence, because preempting one in a step that moves blocks would lose blocks in progress.
        """
        pool = self._kv.pool
        count = max(wanted, min(self._kv.held, pool.total) + 1)
        if count == wanted:
            self._wanted_blocks = None
        if count == pool.total + 1:
            return None
        moved = self._kv.resize(count, self._running.sequences)
        plan = StepPlan((), spills=self._kv.changes.spills, moves=moved, num_blocks=count)
        return Step(plan, [], [], 0, self._clock())

    def commit(self, step: Step, result: StepResult) -> list[RequestOutput]:
        """Apply the result of a step. Steps are committed in the order in which they were planned."""
        if len(result.outputs) != len(step.sequences):
            raise ValueError(f"the runner returned {len(result.outputs)} outputs for {len(step.sequences)} sequences")
        self._counters.steps += 1
        self._commit_ns = self._clock()
        if (tiers := self._kv.tiers) is not None:
            if step.tokens and self._admission.prefetches.active:
                self._learn(step, tiers.index.costs)
            tiers.over(step.plan.spills, step.plan.restores)
        self._kv.sharing.merge(step.merges)
        outputs: list[RequestOutput] = []
        finished = False
        for sequence, entry, output in zip(step.sequences, step.plan.sequences, result.outputs, strict=True):
            if sequence.phase is Phase.FINISHED:
                continue
            if output.error is not None:
                outputs.append(self._break_off(sequence, output.error))
                finished = True
                continue
            if output.prompt_logprobs:
                record_prompt_logprobs(sequence, entry, output)
            if entry.sample:
                message = self._append(sequence, output) if output.vector is None else self._pooled(sequence, output)
                if message is not None:
                    outputs.append(message)
                    finished = finished or message.finish_reason is not None
        if finished:
            self._running.drop_finished()
        return outputs

    def undo(self, steps: Sequence[Step]) -> list[RequestOutput]:
        """Discard all steps in progress, after the device had too little memory for the first of them.

        Their block moves have been done. All sequences are preempted and computed again in smaller steps, from where
        the prefix cache has them. A sequence that repeatedly finds too little memory at the same position, alone with
        one token or with a prompt that cannot be cut, ends with an error; its message is returned.
        """
        for step in steps:
            for sequence, entry in zip(step.sequences, step.plan.sequences, strict=True):
                sequence.pending -= entry.sample
            self._kv.not_computed(step.plan, step.sequences)
        self._admission.preempt_all(WaitReason.DEVICE_MEMORY)
        for step in steps:
            if (tiers := self._kv.tiers) is not None:
                tiers.over(step.plan.spills, step.plan.restores)
            self._kv.sharing.merge(step.merges)
        first = steps[0]
        if first.tokens == 1 or (self._whole_prompts and len(first.sequences) == 1):
            alone, place = first.sequences[0], (first.sequences[0].request_id, first.plan.sequences[0].start)
            self._alone = (place, self._alone[1] + 1 if self._alone[0] == place else 1)
            if self._alone[1] >= ALONE_TRIES and alone.phase is not Phase.FINISHED:
                return [self._break_off(alone, NO_MEMORY)]
        self._batching.shorten(max(1, first.tokens // 2))
        return []

    def lost(self, steps: Sequence[Step]) -> list[RequestOutput]:
        """Discard all steps in progress and every block, after the memory that held them was lost.

        All sequences are preempted and computed again from their first token. Step sizes and learned costs stay, unless
        a sequence was lost more than MOST_LOSSES times. Return the messages of requests that end with an error.
        """
        for step in steps:
            for sequence, entry in zip(step.sequences, step.plan.sequences, strict=True):
                sequence.pending -= entry.sample
            self._kv.not_computed(step.plan, step.sequences)
        self._admission.preempt_all(WaitReason.LOST_PROCESSES)
        for step in steps:
            self._kv.sharing.merge(step.merges)
        self._kv.forget_all()
        self._running.slots.collect_freed()
        return self._blamed(steps)

    @property
    def suspects(self) -> bool:
        """Whether a sequence was lost more than MOST_LOSSES times. Then only one step may be under way, which shows
        which sequence is the cause.
        """
        return max(self._losses.values(), default=0) > MOST_LOSSES

    def _blamed(self, steps: Sequence[Step]) -> list[RequestOutput]:
        """Count lost steps for their sequences. End one that is lost too often, alone; return its message."""
        names = {each.request_id: each for step in steps for each in step.sequences if each.phase is not Phase.FINISHED}
        for name in names:
            self._losses[name] = self._losses.get(name, 0) + 1
        if max((self._losses[name] for name in names), default=0) <= MOST_LOSSES:
            return []
        if len(steps) == 1 and len(steps[0].sequences) == 1:
            return [self._break_off(steps[0].sequences[0], LOST_EACH_TIME)]
        self._batching.shorten(max(1, steps[0].tokens // 2))
        return []

    def give_up(self, error: str) -> list[RequestOutput]:
        """End all requests, and return their messages, with the finish reason "unavailable" and this error."""
        found, now = list(self._sequences.values()), self._clock()
        for sequence in found:
            self._finish(sequence, now)
        self._running.drop_finished()
        return [
            RequestOutput(each.request_id, finish_reason="unavailable", error=error, marks=each.report.take_marks())
            for each in found
        ]

    def _learn(self, step: Step, costs: Costs) -> None:
        """Record the duration of a prefill step, from the later of its planning and the end of the previous step."""
        began, self._committed_ns = max(step.planned_ns, self._committed_ns), self._clock()
        if step.mostly_prompts:
            costs.learn_computed(step.plan.num_tokens, self._committed_ns - began)

    def stats(self) -> EngineStats:
        """Return the current gauges and counters."""
        return engine_stats(self._counters, self._kv, len(self._running.sequences), len(self._admission))

    def _append(self, sequence: SequenceState, output: SequenceOutput) -> RequestOutput | None:
        """Append the sampled token and those that it forces; return the message for the client, if any."""
        if output.token_id is None:
            raise ValueError(f"the runner returned neither a token nor an error for sequence {sequence.request_id!r}")
        sequence.pending -= 1
        if self._losses:
            self._losses.pop(sequence.request_id, None)
        sequence.append(output.token_id)
        tokens, reason = [output.token_id], sequence.end_reason(output.token_id)
        for token in output.forced:
            if reason is not None:
                break
            sequence.append(token)
            tokens.append(token)
            reason = sequence.end_reason(token)
        self._counters.generated_tokens += len(tokens)
        self._counters.forced_tokens += len(tokens) - 1
        if not sequence.report.answered:
            sequence.report.mark(MarkKind.FIRST_TOKEN, self._commit_ns)
        if reason is not None:
            self._policy.learn(sequence)
            self._kv.sharing.publish_last(sequence)
            self._finish(sequence, self._commit_ns)
        return token_message(sequence, tokens, output.logprob, reason)

    def _pooled(self, sequence: SequenceState, output: SequenceOutput) -> RequestOutput:
        """End a sequence of a pooling model, and return its message."""
        sequence.pending -= 1
        self._finish(sequence, self._commit_ns)
        return RequestOutput(
            sequence.request_id,
            finish_reason="stop",
            cached_tokens=sequence.report.cached_tokens,
            vector=output.vector,
            marks=sequence.report.take_marks(),
        )

    def _break_off(self, sequence: SequenceState, error: str) -> RequestOutput:
        """End a sequence with an error, and return its message. Its KV may be wrong too, so its blocks are removed from
        the prefix cache.
        """
        self._kv.disown(sequence)
        self._finish(sequence, self._clock())
        self._counters.broken_off += 1
        marks = sequence.report.take_marks()
        return RequestOutput(sequence.request_id, finish_reason="error", error=error, marks=marks)

    def _finish(self, sequence: SequenceState, at_ns: int) -> None:
        """End a sequence, and mark that. The caller removes it from the running ones afterwards."""
        sequence.report.mark(MarkKind.FINISHED, at_ns)
        was, sequence.phase = sequence.phase, Phase.FINISHED
        del self._sequences[sequence.request_id]
        self._losses.pop(sequence.request_id, None)
        self._admission.forget(sequence, was)
        if was is Phase.RUNNING:
            self._running.leave(sequence)

    def check_integrity(self, under_way: Collection[Step] = ()) -> None:
        """Raise AssertionError if blocks, slots and sequences disagree; `under_way` are steps not committed yet."""
        sequences = list(self._sequences.values())
        frames = [frame for step in under_way for frame, _ in step.plan.restores]
        merges = [merge for step in under_way for merge in step.merges]
        self._kv.check_integrity(self._running.sequences, merges, frames)
        self._running.check_integrity(sequences)
        self._admission.check_integrity(sequences)
        self._deadlines.check_integrity(sequences)
