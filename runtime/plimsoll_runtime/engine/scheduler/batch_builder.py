"""Chooses the tokens that a step computes, and builds its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.kv.in_flight_sharing import Merge
from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import MarkKind, WaitReason
from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, MOST_FORCED, ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.scheduler.admission import Admission
from plimsoll_runtime.engine.scheduler.running import RunningSequences
from plimsoll_runtime.engine.scheduler.stats import Counters
from plimsoll_runtime.engine.scheduler.token_budget import Pacer, SmallSteps
from plimsoll_runtime.engine.sequence import Phase, SequenceState


@dataclass(frozen=True, slots=True)
class Step:
    """A plan, with the data that `Scheduler.commit` needs: the sequences in the plan's order, the blocks to merge after
    the step, the number of tokens, and the time of planning in nanoseconds.
    """

    plan: StepPlan
    sequences: list[SequenceState]
    merges: list[Merge]
    tokens: int
    planned_ns: int

    @property
    def mostly_prompts(self) -> bool:
        """Whether the step has two or more tokens for each sequence on average; a decode has one."""
        return 2 * len(self.sequences) <= self.tokens


class StepBuilder:
    """A plan under construction; `budget` more tokens may be added."""

    __slots__ = ("budget", "entries", "new_slots", "sequences", "tokens")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self.entries: list[ScheduledSequence] = []
        self.sequences: list[SequenceState] = []
        self.new_slots: list[SlotInit] = []

    def add(self, sequence: SequenceState, entry: ScheduledSequence) -> None:
        """Add a chunk of a sequence."""
        self.entries.append(entry)
        self.sequences.append(sequence)
        self.budget -= len(entry.token_ids)
        self.tokens += len(entry.token_ids)


_UNSEEN = (LAST_CHOSEN,)


class BatchBuilder:
    """Fills steps with tokens of running sequences and of sequences that it admits.

    A step is planned by order key: first decodes, then running prompts and new sequences, each with the rest of the
    token budget. A sequence gets all blocks for its known tokens when it is admitted, so only decodes need more. If
    none is left, the running sequence with the highest order key is preempted.
    """

    def __init__(
        self, limits: Limits, kv: KvCacheManager, running: RunningSequences, admission: Admission, counters: Counters
    ) -> None:
        self._most = limits.max_batch_tokens
        self._kv = kv
        self._running = running
        self._admission = admission
        self._counters = counters
        self._pacer: Pacer | SmallSteps = Pacer(limits)
        self._whole_prompts = limits.whole_prompts
        self._stages = limits.stages
        self._snapshots = kv.snapshots
        self._block_size = limits.block_size

    def plan(self) -> StepBuilder:
        """Plan the next step. It is empty if nothing can be computed before another step is committed."""
        decodes, prompts, decoded = [], [], 0
        for sequence in self._running.sequences:
            left = sequence.length - sequence.computed
            if left > 1 and not _is_forced(sequence, left):
                prompts.append(sequence)
            elif left > 0 and not sequence.ends_by_length:
                decodes.append(sequence)
                decoded += left
        if self._stages > 1:
            decodes = self._of_one_step(decodes)
            decoded = sum(sequence.length - sequence.computed for sequence in decodes)
        pace = self._pacer.next(decoded, len(prompts) + self._admission.newcomers())
        build = StepBuilder(pace.tokens)
        if pace.alone:
            self._plan_prompts(prompts, build)
            self._pacer.had_it_alone(filled=build.budget == 0)
            if build.budget > 0:
                build.budget = self._most - build.tokens
                self._plan_decodes(decodes, build)
        else:
            self._plan_decodes(decodes, build)
            self._plan_prompts(prompts, build)
        self._counters.computed_tokens += build.tokens
        return build

    def _of_one_step(self, decodes: Sequence[SequenceState]) -> list[SequenceState]:
        """Return the decodes that the next step of a pipeline may have: none whose token is not known yet, and so many
        that all steps under way have equally many.
        """
        known = [sequence for sequence in decodes if not sequence.pending]
        return known[: -(-len(decodes) // self._stages)]

    def shorten(self, tokens: int) -> None:
        """Plan steps of `tokens` tokens after a lack of device memory; later steps grow again."""
        if isinstance(self._pacer, SmallSteps):
            self._pacer.shrink(tokens)
        else:
            self._pacer = SmallSteps(tokens, self._most, self._first_whole)

    def _first_whole(self) -> int:
        """Return how many tokens the first waiting sequence needs in one step; 0 if none waits, or if prompts may be
        computed in chunks.
        """
        first = self._admission.waiting.peek() if self._whole_prompts else None
        return 0 if first is None else first.length

    def _plan_decodes(self, decodes: list[SequenceState], build: StepBuilder) -> None:
        """Plan the decodes: each computes its last sampled token and the forced tokens after it. Some sequences may be
        preempted.
        """
        alone = not build.entries
        for sequence in decodes:
            if build.budget == 0:
                return
            if sequence.phase is not Phase.RUNNING:
                continue
            count = min(sequence.length - sequence.computed, build.budget)
            if count > 1 and self._snapshots is not None:
                count = self._snapshots.cut(sequence, count)
            full = sequence.computed + count > sequence.kv.allocated
            if not full or self._make_room(sequence, sequence.computed + count, by_preemption=alone):
                self._plan_chunk(sequence, count, build)

    def _make_room(self, sequence: SequenceState, tokens: int, *, by_preemption: bool) -> bool:
        """Allocate blocks for a decode, if necessary by preempting. Return False if there are too few: the decode was
        preempted itself, or `by_preemption` is False.

        `by_preemption` requires that the step has no chunks yet: preemption starts at the highest order key, and must
        not hit a sequence that is planned already.
        """
        while not self._kv.grow(sequence, tokens):
            if not by_preemption or self._admission.preempt() is sequence:
                return False
        return True

    def _plan_prompts(self, prompts: list[SequenceState], build: StepBuilder) -> None:
        """Plan the sequences that have more than one token to compute, and admit others, by order key."""
        for sequence in [s for s in prompts if s.phase is Phase.RUNNING]:
            self._let_in(build, before=sequence.queue.order_key)
            if build.budget > 0 and sequence.phase is Phase.RUNNING:
                self._catch_up(sequence)
                self._plan_prompt(sequence, build)
        self._let_in(build)

    def _let_in(self, build: StepBuilder, before: tuple[int, ...] | None = None) -> None:
        """Admit sequences while there is budget, only those with an order key below `before` if it is given."""
        while build.budget > 0 and (sequence := self._admission.next(before, build.budget)) is not None:
            outputs = sequence.output_ids.copy()
            build.new_slots.append(SlotInit(sequence.slot, sequence.context, sequence.prompt, outputs))
            if self._snapshots is not None:
                self._snapshots.begin(sequence)
            self._plan_prompt(sequence, build)
        if build.budget <= 0:
            self._admission.block(WaitReason.TOKEN_BUDGET)

    def _catch_up(self, sequence: SequenceState) -> None:
        """Skip the part of the prompt that another sequence has computed since this one was admitted."""
        found = self._kv.sharing.catch_up(sequence)
        if not sequence.report.answered:
            sequence.report.cached_tokens += found
            self._counters.cache_hit_tokens += found

    def _plan_prompt(self, sequence: SequenceState, build: StepBuilder) -> None:
        """Plan the next chunk of a prompt, as large as budget and blocks allow."""
        count = min(sequence.length - sequence.computed, build.budget)
        count = self._kv.chunk(sequence, count, spare=len(self._running.sequences))
        if self._snapshots is not None:
            count = self._snapshots.cut(sequence, count)
        if self._has_blocks(sequence, sequence.computed + count, build):
            if sequence.computed >= sequence.prompt_len:
                sequence.report.mark(MarkKind.CHUNK, self._admission.now_ns, count)
            self._plan_chunk(sequence, count, build)

    def _has_blocks(self, sequence: SequenceState, tokens: int, build: StepBuilder) -> bool:
        """Allocate blocks for the sequence's first `tokens` tokens. Return False if there are too few; the prompt then
        waits.

        The blocks were reserved at admission. If other sequences took them since, preempt the one with the highest
        order key, unless that is this sequence or is planned already.
        """
        while tokens > sequence.kv.allocated and not self._kv.grow(sequence, tokens):
            victim = self._running.sequences[-1]
            if victim is sequence or victim in build.sequences:
                return False
            self._admission.preempt()
        return True

    def _plan_chunk(self, sequence: SequenceState, count: int, build: StepBuilder) -> None:
        """Plan the next `count` tokens. If they include the last one, the step samples the next token."""
        start = sequence.computed
        end = start + count
        sample = end == sequence.length
        generated = start - sequence.prompt_len
        targets: Sequence[int] = ()
        if generated >= 0:
            tokens: Sequence[int] = sequence.output_ids[generated : generated + count]
        else:
            tokens = sequence.tokens(start, end)
            sequence.report.mark(MarkKind.CHUNK, self._admission.now_ns, count)
            if sequence.scores_prompt:
                targets = sequence.prompt[start + 1 : end + 1]
            self._counters.prompt_tokens += min(end, sequence.prompt_len) - start
        changes = () if sequence.kv.tables_sent else sequence.kv.changes()
        build.add(sequence, ScheduledSequence(sequence.slot, start, tokens or _UNSEEN, changes, sample, targets))
        sequence.computed = end
        sequence.pending += sample
        self._kv.sharing.publish(sequence)
        if self._snapshots is not None and not end % self._block_size:
            self._snapshots.passed(sequence)


def _is_forced(sequence: SequenceState, left: int) -> bool:
    """Whether the tokens left to compute are a sampled one and those that it forced."""
    return sequence.computed >= sequence.prompt_len and left <= 1 + MOST_FORCED
