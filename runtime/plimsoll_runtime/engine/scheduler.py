"""The scheduler: which sequences compute which tokens in the next step, and what came of it.

A step is planned in the order of the policy's ranks (arrival, if it is first come, first served): decodes, then
prompts that are under way and new arrivals, each with what is left of the token budget. A sequence gets all blocks
that its known tokens need when it is admitted, so only decodes ever ask for more; when none is left the last of the
running sequences gives up its blocks and waits to be computed again. Nobody is admitted before the first in line.

So the first of all, once it runs, is never held up (in a burst for three steps of prompts, where the limits say so);
until then the sequences that run before it finish one by one, or give way at once where the policy preempts. As ranks
favour nobody for ever, every request ends.

`schedule` and `commit` are separate: a step may be planned while earlier ones run, as long as they run and are
committed in the order in which they were planned. A sequence whose token is still to come goes on with
`LAST_CHOSEN`: the runner knows the token by then. If that was its last one (a stop token, an error), what was planned
for it comes to nothing: its row is computed, and its blocks are not used again before that.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from plimsoll_runtime.engine.allocator import KvAllocator
from plimsoll_runtime.engine.deadlines import DeadlineQueue
from plimsoll_runtime.engine.fetches import Fetches
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.messages import AddRequest, EngineStats, RequestOutput, TierStats
from plimsoll_runtime.engine.outputs import deadline_message, record_prompt_logprobs, token_message
from plimsoll_runtime.engine.pacing import Pacer
from plimsoll_runtime.engine.plan import (
    LAST_CHOSEN,
    ScheduledSequence,
    SequenceOutput,
    SlotInit,
    StepPlan,
    StepResult,
)
from plimsoll_runtime.engine.policy import SECOND_NS, FirstComeFirstServed, Policy
from plimsoll_runtime.engine.prompt import Prompt
from plimsoll_runtime.engine.sequence import Phase, SequenceState
from plimsoll_runtime.engine.slots import SlotPool
from plimsoll_runtime.engine.step import Step, StepBuilder
from plimsoll_runtime.engine.tiers.index import TierIndex
from plimsoll_runtime.engine.waiting import WaitingQueue
from plimsoll_runtime.errors import UsageError

SEED_BITS = 63

_UNSEEN = (LAST_CHOSEN,)


class Scheduler:
    """Sequences that wait, sequences that run, and the blocks and slots they hold.

    With `tiers` a sequence whose prefix lies on the disk stands aside while it is read, and others go ahead of it.
    `clock` gives nanoseconds and is the one by which requests say when they arrived.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        tiers: TierIndex | None = None,
    ) -> None:
        self._limits = limits
        self._policy = policy or FirstComeFirstServed()
        self._kv = KvAllocator(
            limits.num_blocks,
            limits.block_size,
            prefix_caching=limits.prefix_caching,
            tiers=tiers,
            rules=limits.groups,
        )
        self._slots = SlotPool(limits.max_sequences)
        self._sequences: dict[str, SequenceState] = {}
        self._clock = clock
        self._waiting = WaitingQueue(self._rerank if self._policy.refreshes else None)
        self._fetches = Fetches(self._kv, limits.max_sequences, clock)
        self._deadlines = DeadlineQueue()
        self._running: list[SequenceState] = []
        self._counters = _Counters()
        self._committed_ns = 0
        self._pacer = Pacer(limits)
        self._seeds = random.Random()
        self._wanted_blocks: int | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises UsageError for an id that is in use; `limits.check_request` has done the rest."""
        if request.request_id in self._sequences:
            raise UsageError(f"request id {request.request_id!r} is in use; every request needs an id of its own")
        sequence = self._new_sequence(request)
        self._counters.arrivals += 1
        self._sequences[sequence.request_id] = sequence
        self._deadlines.add(sequence)
        self._kv.poll_tiers()
        near = len(self._waiting) < self._fetches.places(self._slots.available)
        if not (near and self._fetches.begin(sequence)):
            self._waiting.push(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ids are ignored. A step that is under way for them comes to nothing."""
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                self._finish(sequence)
        self._drop_finished()

    def expire(self) -> list[RequestOutput]:
        """End the requests whose deadline has passed before their first token; what their clients hear."""
        if not self._deadlines:
            return []
        missed = self._deadlines.pop_missed(self._clock())
        for sequence in missed:
            self._finish(sequence)
        if missed:
            self._counters.expired += len(missed)
            self._drop_finished()
        return [deadline_message(sequence) for sequence in missed]

    def forget_prefixes(self) -> None:
        """Make everything in the prefix cache unfindable."""
        self._kv.forget_all()

    def resize(self, num_blocks: int) -> None:
        """Have so many blocks, the padding block included, as soon as no more are held; the latest word counts.

        What is free is given up at once, and the rest as sequences end or give way.
        """
        self._wanted_blocks = num_blocks

    @property
    def resizing(self) -> bool:
        """Whether there are not yet as many blocks as are wanted, as far as steps have been planned."""
        return self._wanted_blocks is not None

    def await_fetches(self, seconds: float) -> None:
        """When all that there is to do waits for the disk: return once something was read, or after so many seconds."""
        if self._fetches and self._kv.tiers is not None:
            self._kv.tiers.wait(seconds)

    def schedule(self) -> Step | None:
        """Plan the next step; None when nothing can be computed before another step is committed."""
        self._kv.begin_step()
        if self._wanted_blocks is not None and (resize := self._resize(self._wanted_blocks)) is not None:
            return resize
        for sequence in self._fetches.take_ended():
            self._waiting.push(sequence)
        if self._waiting:
            self._prepare_admission()
        decodes = [s for s in self._running if s.length - s.computed == 1 and not s.ends_by_length]
        pace = self._pacer.next(len(decodes), self._newcomers())
        build = StepBuilder(pace.tokens)
        if pace.alone:
            self._plan_prompts(build)
            self._pacer.had_it_alone(filled=build.budget == 0)
            if build.budget > 0:
                build.budget = self._limits.max_batch_tokens - build.tokens
                self._plan_decodes(decodes, build)
        else:
            self._plan_decodes(decodes, build)
            self._plan_prompts(build)
        if self._fetches.active:
            self._look_ahead()
        if not build.entries:
            return None
        self._counters.computed_tokens += build.tokens
        moves = self._kv.end_step()
        freed = self._slots.collect_freed()
        plan = StepPlan(build.entries, freed, build.new_slots, moves.copies, moves.spills, moves.restores)
        return Step(plan, build.sequences, moves.merges, build.tokens, self._clock())

    def _resize(self, wanted: int) -> Step | None:
        """A step of its own that changes the number of blocks as far as can be now; None where it cannot or need not.

        No sequence is planned in it: whoever gave way in a step that moves blocks would lose what is on its way.
        """
        pool = self._kv.pool
        count = max(wanted, min(self._kv.held, pool.total) + 1)
        if count == wanted:
            self._wanted_blocks = None
        if count == pool.total + 1:
            return None
        moved = self._kv.resize(count, self._running)
        spills = self._kv.end_step().spills
        return Step(StepPlan((), spills=spills, moves=moved, num_blocks=count), [], [], 0, self._clock())

    def commit(self, step: Step, result: StepResult) -> list[RequestOutput]:
        """Take over what a step computed. Steps are committed in the order in which they were planned."""
        if len(result.outputs) != len(step.sequences):
            raise ValueError(f"{len(result.outputs)} outputs came for {len(step.sequences)} sequences")
        self._counters.steps += 1
        if self._fetches.active and step.tokens:
            self._learn(step)
        self._kv.commit(step.plan.spills, step.plan.restores)
        self._kv.merge(step.merges)
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
                message = self._append(sequence, output)
                outputs.append(message)
                finished = finished or message.finish_reason is not None
        if finished:
            self._drop_finished()
        return outputs

    def _learn(self, step: Step) -> None:
        """What a step of prompts took: from when it was planned or, if that came later, the one before it was over."""
        began, self._committed_ns = max(step.planned_ns, self._committed_ns), self._clock()
        if step.mostly_prompts:
            self._kv.learn_computed(step.plan.num_tokens, self._committed_ns - began)

    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        counters, pool = self._counters, self._kv.pool
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._fetches),
            blocks_total=pool.total,
            blocks_used=pool.used,
            blocks_cached=pool.idle,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            cache_query_tokens=counters.cache_query_tokens,
            cache_hit_tokens=counters.cache_hit_tokens,
            preemptions=counters.preemptions,
            evictions=pool.evictions,
            expired=counters.expired,
            broken_off=counters.broken_off,
            tiers=self._tier_stats(),
        )

    def _tier_stats(self) -> TierStats | None:
        tiers = self._kv.tiers
        if tiers is None:
            return None
        counts = tiers.counts
        return TierStats(
            host_blocks=tiers.frames_used,
            disk_blocks=tiers.disk_used,
            under_way=tiers.under_way,
            hit_tokens=self._counters.restored_tokens,
            spilled=counts.spilled,
            dropped=counts.dropped,
            loaded=counts.loaded,
            failed=counts.failed,
            passed=counts.passed,
        )

    def _new_sequence(self, request: AddRequest) -> SequenceState:
        limits, params = self._limits, request.params
        prompt = Prompt.of(request.prompt_token_ids)
        prompt_len = len(prompt)
        max_tokens = limits.max_len if params.max_tokens is None else params.max_tokens
        stop_ids = frozenset(params.stop_token_ids)
        arrived_ns = request.arrived_ns or self._clock()
        sequence = SequenceState(
            request_id=request.request_id,
            params=params,
            seed=self._seeds.getrandbits(SEED_BITS) if params.seed is None else params.seed,
            arrival=self._counters.arrivals,
            prompt=prompt,
            prompt_len=prompt_len,
            min_len=prompt_len + params.min_tokens,
            max_len=min(prompt_len + max_tokens, limits.max_len),
            stop_ids=stop_ids if params.ignore_eos else stop_ids | limits.eos_token_ids,
            names=self._kv.root(request.cache_salt),
            prompt_logprobs=None if params.prompt_logprobs is None else [],
            arrived_ns=arrived_ns,
            arrived_tokens=self._counters.computed_tokens,
            due_ns=None if params.deadline is None else arrived_ns + int(params.deadline * SECOND_NS),
        )
        self._rerank(sequence)
        return sequence

    def _rerank(self, sequence: SequenceState) -> None:
        if self._policy.refreshes:
            sequence.prefix = self._kv.probe(sequence)
        sequence.rank = self._policy.rank(sequence)

    def _prepare_admission(self) -> None:
        """See to it that the first in line is that still, and if the policy preempts, that there is room for it."""
        if self._policy.refreshes:
            self._waiting.refresh(self._policy.refreshes)
        first = self._waiting.peek()
        if self._policy.preempts and first is not None and not first.pending:
            self._make_way(first)

    def _make_way(self, first: SequenceState) -> None:
        """Preempt running sequences that rank behind the first in line, if that lets it in.

        What several of them share is counted several times: then it gets in only with a later step, when more have
        given way.
        """
        outranked = len(self._running) - bisect_right(self._running, first.rank, key=_rank)
        if not outranked:
            return
        lacking = self._kv.lacking(first, sum(map(self._kv.growth, self._running)))
        if sum(map(self._kv.given_up, self._running[-outranked:])) < lacking:
            return
        while outranked and (lacking > 0 or not self._slots.available):
            victim = self._running.pop()
            outranked -= 1
            lacking -= self._kv.given_up(victim)
            self._preempt(victim)

    def _newcomers(self) -> int:
        """How many have a prompt under way or could begin with one."""
        prompts = sum(sequence.length - sequence.computed > 1 for sequence in self._running)
        return prompts + min(len(self._waiting), self._slots.available)

    def _plan_decodes(self, decodes: list[SequenceState], build: StepBuilder) -> None:
        """Plan the sequences of which one token is to be computed; some may give way to others of them."""
        alone = not build.entries
        for sequence in decodes:
            if build.budget == 0:
                return
            full = sequence.computed >= sequence.room
            if sequence.phase is not Phase.RUNNING or (full and not self._make_room(sequence, by_preemption=alone)):
                continue
            self._plan_chunk(sequence, 1, build)

    def _plan_prompts(self, build: StepBuilder) -> None:
        """Plan the sequences that have more than a token to compute, and let others in, by rank."""
        for sequence in [s for s in self._running if s.length - s.computed > 1]:
            self._admit(build, before=sequence)
            if build.budget > 0 and sequence.phase is Phase.RUNNING:
                self._catch_up(sequence)
                self._plan_prompt(sequence, build)
        self._admit(build)

    def _make_room(self, sequence: SequenceState, *, by_preemption: bool) -> bool:
        """Give a decode its next blocks, if need be by preempting the newest; False when that is the decode itself.

        Only the end of `_running` is touched, where nothing has been planned yet in this step: without prompts before.
        """
        while not self._kv.grow(sequence, sequence.computed + 1):
            if not by_preemption:
                return False
            victim = self._running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: SequenceState) -> None:
        self._leave(victim)
        victim.phase = Phase.WAITING
        self._waiting.push(victim)
        self._counters.preemptions += 1

    def _catch_up(self, sequence: SequenceState) -> None:
        """Skip what somebody who went ahead has computed of the same prompt meanwhile."""
        found = self._kv.catch_up(sequence)
        if not sequence.answered:
            sequence.cached_tokens += found
            self._counters.cache_hit_tokens += found

    def _plan_prompt(self, sequence: SequenceState, build: StepBuilder) -> None:
        """Compute the next tokens, as many as there are budget and blocks for."""
        count = min(sequence.length - sequence.computed, build.budget)
        count = self._kv.chunk(sequence, count, spare=len(self._running))
        if self._has_blocks(sequence, sequence.computed + count, build):
            self._plan_chunk(sequence, count, build)

    def _has_blocks(self, sequence: SequenceState, tokens: int, build: StepBuilder) -> bool:
        """Whether there is room for so many tokens of a prompt, which was promised when it was let in.

        Where others took it meanwhile, who ranks behind gives way, unless it is planned already; else the prompt waits.
        """
        while tokens > sequence.room and not self._kv.grow(sequence, tokens):
            victim = self._running[-1]
            if victim is sequence or victim in build.sequences:
                return False
            self._preempt(self._running.pop())
        return True

    def _plan_chunk(self, sequence: SequenceState, count: int, build: StepBuilder) -> None:
        """Compute the next `count` tokens; with the last of them, choose the one after."""
        start = sequence.computed
        end = start + count
        sample = end == sequence.length
        generated = start - sequence.prompt_len
        tokens = sequence.output_ids[generated : generated + count] if generated >= 0 else sequence.tokens(start, end)
        entry = ScheduledSequence(
            sequence.slot,
            start,
            tokens or _UNSEEN,
            sequence.planned or self._kv.plan(sequence),
            sample,
            sequence.prompt[start + 1 : end + 1] if sequence.scores_prompt else (),
        )
        build.add(sequence, entry)
        self._counters.prompt_tokens += max(0, min(end, sequence.prompt_len) - start)
        sequence.computed = end
        sequence.pending += sample
        self._kv.publish(sequence)

    def _admit(self, build: StepBuilder, before: SequenceState | None = None) -> None:
        """Let sequences in while there are budget, slots and blocks; those that run keep a spare block each.

        Only those that rank before a running one, if it is given.
        """
        while build.budget > 0 and self._slots.available:
            sequence = self._waiting.peek()
            if sequence is None or sequence.pending or (before is not None and sequence.rank > before.rank):
                return
            if self._fetches.holds_up(sequence, self._slots.available):
                return
            if self._fetches.begin(sequence):
                self._waiting.leave(sequence)
                continue
            if not self._kv.admit(sequence, spare=len(self._running)):
                return
            self._waiting.pop()
            self._fetches.end(sequence)
            self._counters.restored_tokens += sequence.restored
            self._enter(sequence, build)
            self._plan_prompt(sequence, build)

    def _look_ahead(self) -> None:
        """Have the disk read for those who wait and whose turn is near, ahead of it."""
        free = self._slots.available
        front = self._waiting.front(self._fetches.places(free))
        self._fetches.keep_only(front)
        for sequence in front:
            if self._fetches.full(free):
                return
            if not sequence.sought and self._fetches.begin(sequence):
                self._waiting.leave(sequence)

    def _enter(self, sequence: SequenceState, build: StepBuilder) -> None:
        """A sequence that has its blocks takes a slot."""
        sequence.phase = Phase.RUNNING
        sequence.slot = self._slots.take()
        insort(self._running, sequence, key=_rank)
        outputs = sequence.output_ids.copy()
        build.new_slots.append(SlotInit(sequence.slot, sequence.params, sequence.seed, sequence.prompt, outputs))
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached_tokens = sequence.computed
            self._counters.cache_query_tokens += sequence.prompt_len
            self._counters.cache_hit_tokens += sequence.computed

    def _append(self, sequence: SequenceState, output: SequenceOutput) -> RequestOutput:
        """Add the token that was chosen; what its client hears of it."""
        token = output.token_id
        if token is None:
            raise ValueError(f"no token came for sequence {sequence.request_id!r}, and no error")
        sequence.append(token)
        sequence.pending -= 1
        self._counters.generated_tokens += 1
        reason = sequence.end_reason(token)
        message = token_message(sequence, token, output.logprob, reason)
        if reason is not None:
            self._policy.learn(sequence)
            self._kv.publish_last(sequence)
            self._finish(sequence)
        return message

    def _break_off(self, sequence: SequenceState, error: str) -> RequestOutput:
        """End a sequence that cannot go on. Its KV may be as broken as its logits: nobody is to find it."""
        self._kv.disown(sequence)
        self._finish(sequence)
        self._counters.broken_off += 1
        return RequestOutput(sequence.request_id, finish_reason="error", error=error)

    def _finish(self, sequence: SequenceState) -> None:
        """End a sequence. Whoever calls this drops it from the running ones afterwards."""
        was, sequence.phase = sequence.phase, Phase.FINISHED
        del self._sequences[sequence.request_id]
        self._fetches.end(sequence)
        if was is Phase.WAITING:
            self._waiting.leave(sequence)
        elif was is Phase.RUNNING:
            self._leave(sequence)

    def _leave(self, sequence: SequenceState) -> None:
        """Give blocks and slot back."""
        self._kv.release(sequence)
        self._slots.release(sequence.slot)
        sequence.slot = -1

    def _drop_finished(self) -> None:
        self._running = [s for s in self._running if s.phase is Phase.RUNNING]

    def check_integrity(self, under_way: Collection[Step] = ()) -> None:
        """Raises AssertionError where blocks, slots and sequences disagree; `under_way` are steps not committed."""
        fetches = [s.fetch for s in self._sequences.values() if s.fetch is not None]
        frames = [frame for fetch in fetches for frame in fetch.frames]
        frames += [frame for step in under_way for frame, _ in step.plan.restores]
        self._kv.check_integrity(self._running, [m for step in under_way for m in step.merges], frames)
        self._slots.check_integrity([s.slot for s in self._running])
        ranks = [s.rank for s in self._running]
        assert ranks == sorted(ranks), "running sequences are out of order"
        phases = [s.phase for s in self._sequences.values()]
        assert phases.count(Phase.RUNNING) == len(self._running), "a running sequence is lost"
        assert phases.count(Phase.WAITING) == len(self._waiting), "a waiting sequence is lost"
        assert phases.count(Phase.FETCHING) == len(self._fetches), "a sequence that waits for the disk is lost"
        self._fetches.check_integrity(self._sequences.values())
        self._waiting.check_integrity()
        self._deadlines.check_integrity(list(self._sequences.values()))


@dataclass(slots=True)
class _Counters:
    arrivals: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cache_query_tokens: int = 0
    cache_hit_tokens: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    restored_tokens: int = 0
    expired: int = 0
    broken_off: int = 0


def _rank(sequence: SequenceState) -> tuple[int, ...]:
    return sequence.rank
