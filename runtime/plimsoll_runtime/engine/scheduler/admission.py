"""Creates sequences from requests, prefetches their prefixes from disk, admits them by order key, and preempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.kv.offload.prefixes import TieredPrefixes
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import AddRequest, MarkKind, WaitReason
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.scheduler.policies import SECOND_NS, Policy
from plimsoll_runtime.engine.scheduler.running import RunningSequences
from plimsoll_runtime.engine.scheduler.stats import Counters
from plimsoll_runtime.engine.scheduler.waiting_queue import WaitingQueue
from plimsoll_runtime.engine.sequence import Phase, QueueEntry, Report, SequenceState

PREFETCH_NS = 2 * SECOND_NS
"""How long a sequence waits while its prefix is read from disk. Then it computes the part that has not arrived."""
AHEAD_SHARE = 8
"""Prefixes are prefetched for sequences near the front: those that could start immediately, and one more for every
`AHEAD_SHARE` sequences that may run.

If all slots are taken, about that share of them becomes free in the time that reading a few hundred blocks takes.
"""


class Prefetches:
    """Prefetches the prefixes of waiting sequences from disk. A sequence is out of the queue while its prefix is read.

    Without `tiers` nothing is prefetched. `clock` gives nanoseconds.

    Blocks that are read for a sequence stay in frames of host memory until it runs, and frames are few. So only
    sequences near the front have blocks read: as many as could start immediately, and some more for the time that
    reading takes. A sequence that falls behind again releases its frames; the blocks stay in them until the frames are
    reused.
    """

    def __init__(self, tiers: TieredPrefixes | None, max_sequences: int, clock: Callable[[], int]) -> None:
        self.ahead = max(1, max_sequences // AHEAD_SHARE)
        self._tiers = tiers
        self._most = max_sequences + self.ahead
        self._clock = clock
        self._aside: dict[SequenceState, int] = {}

    def __len__(self) -> int:
        """Return the number of sequences that are out of the queue."""
        return len(self._aside)

    @property
    def active(self) -> bool:
        """Whether the disk has blocks, or frames are held for sequences in the queue."""
        tiers = self._tiers
        return tiers is not None and bool(tiers.index.disk_used or self._num_ready)

    @property
    def _num_ready(self) -> int:
        """The number of sequences that are in the queue again, with frames held for them."""
        return 0 if self._tiers is None else len(self._tiers.prefetches) - len(self._aside)

    def places(self, free: int) -> int:
        """Return how many sequences at the front of the queue may be prefetched if `free` slots are free: that many and
        `ahead` more, minus the sequences that are out of the queue.
        """
        return max(0, free + self.ahead - len(self._aside))

    def full(self, free: int) -> bool:
        """Return whether no further prefetch may start: `places(free)` queued sequences hold frames already."""
        return self._num_ready >= self.places(free)

    def begin(self, sequence: SequenceState) -> bool:
        """Start to read a waiting sequence's prefix from disk; return whether it leaves the queue for that."""
        if self._tiers is None or not self._tiers.prefetch(sequence):
            return False
        sequence.phase = Phase.PREFETCHING
        self._aside[sequence] = self._clock() + PREFETCH_NS
        return True

    def holds_up(self, sequence: SequenceState, free: int) -> bool:
        """Return whether the first sequence of the queue needs a prefetch that cannot start before another one ends.

        That takes PREFETCH_NS at most, whatever the disk does.
        """
        return self._tiers is not None and not self.places(free) and self._tiers.would_prefetch(sequence)

    def wait(self, seconds: float) -> None:
        """Wait until the disk has read or written a block, for at most `seconds`; return immediately if no sequence is
        out of the queue.
        """
        if self._aside and self._tiers is not None:
            self._tiers.index.wait(seconds)

    def take_ended(self) -> list[SequenceState]:
        """Remove and return the sequences whose prefix has been read or whose time is up. The caller requeues them."""
        if self._tiers is None or not self._aside:
            return []
        now, prefetches = self._clock(), self._tiers.prefetches
        over = [s for s, due in self._aside.items() if now >= due or not prefetches[s].loading]
        for sequence in over:
            del self._aside[sequence]
            sequence.phase = Phase.WAITING
        return over

    def keep_only(self, front: Collection[SequenceState]) -> None:
        """Drop the prefetches of queued sequences that are not in `front`."""
        if self._tiers is not None:
            for sequence in (self._tiers.prefetches.keys() - self._aside.keys()).difference(front):
                self.end(sequence)

    def end(self, sequence: SequenceState) -> None:
        """Drop the prefetch of a sequence that runs, has ended, or has fallen behind."""
        self._aside.pop(sequence, None)
        if self._tiers is not None:
            self._tiers.end_prefetch(sequence)

    def check_integrity(self, sequences: Iterable[SequenceState]) -> None:
        """Raise AssertionError if an unknown sequence holds frames, or too many sequences are out of the queue."""
        if self._tiers is not None:
            prefetched = self._tiers.prefetches.keys()
            assert self._aside.keys() <= prefetched, "a prefetch is lost"
            ready = prefetched - self._aside.keys()
            assert all(s.phase is Phase.WAITING for s in ready), "a ready sequence is not in the queue"
            assert self._tiers.asked.issubset(sequences), "a sequence that has ended is kept"
        assert all(s.phase is Phase.PREFETCHING for s in self._aside), "a sequence out of the queue is in another phase"
        assert len(self._aside) <= self._most, f"{len(self._aside)} wait for the disk at once"


class Admission:
    """Holds the waiting sequences, in the queue or out of it while their prefix is read from disk; admits them, and
    preempts running ones.

    `update_key` computes the order key of a waiting sequence again; `clock` gives nanoseconds, and `now_ns` is its time
    when the step was begun.

    No sequence is admitted before the first in the queue, unless that one waits for the disk. A sequence is admitted
    when there are a slot and blocks for all its known tokens, and a spare block for each running sequence.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        kv: KvCacheManager,
        running: RunningSequences,
        counters: Counters,
        update_key: Callable[[SequenceState], None],
        clock: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._whole_prompts = limits.whole_prompts
        self._kv = kv
        self._running = running
        self._counters = counters
        self._clock = clock
        self.now_ns = clock()
        self._blocked = WaitReason.NOTHING, 0
        self.waiting = WaitingQueue(update_key if policy.refreshes else None)
        self.prefetches = Prefetches(kv.tiers, limits.max_sequences, clock)

    def __len__(self) -> int:
        """Return the number of sequences that do not run."""
        return len(self.waiting) + len(self.prefetches)

    def add(self, sequence: SequenceState) -> None:
        """Queue a new sequence, or start its prefetch if it would be near the front."""
        self._queued(sequence, MarkKind.QUEUED, self._clock())
        if self._kv.tiers is not None:
            self._kv.tiers.index.poll()
        near = len(self.waiting) < self.prefetches.places(self._running.slots.available)
        if not (near and self.prefetches.begin(sequence)):
            self.waiting.push(sequence)

    def begin_step(self) -> None:
        """Requeue ended prefetches, refresh order keys, and preempt for the first waiting sequence if the policy does
        so.
        """
        self.now_ns = self._clock()
        for sequence in self.prefetches.take_ended():
            self.waiting.push(sequence)
        if not self.waiting:
            return
        if self._policy.refreshes:
            self.waiting.refresh(self._policy.refreshes)
        first = self.waiting.peek()
        if self._policy.preempts and first is not None and not first.pending:
            self._make_way(first)

    def newcomers(self) -> int:
        """Return how many waiting sequences could be admitted, by the number of free slots."""
        return min(len(self.waiting), self._running.slots.available)

    def next(self, before: tuple[int, ...] | None, budget: int) -> SequenceState | None:
        """Admit the first sequence in the queue and return it; None if it cannot be admitted. A sequence whose prefix
        must be read from disk leaves the queue, and the next one is tried.

        With `before`, the order key of a running sequence, only a lower key is admitted. If prompts are computed whole,
        only a sequence of at most `budget` tokens is admitted.
        """
        while self._running.slots.available:
            sequence = self.waiting.peek()
            if sequence is None or sequence.pending:
                return None
            if before is not None and sequence.queue.order_key > before:
                return None
            if self._whole_prompts and sequence.length > budget:
                self.block(WaitReason.TOKEN_BUDGET)
                return None
            if self.prefetches.holds_up(sequence, self._running.slots.available):
                self.block(WaitReason.DISK)
                return None
            if self.prefetches.begin(sequence):
                self.block(WaitReason.DISK)
                self.waiting.leave(sequence)
                continue
            if not self._kv.admit(sequence, spare=len(self._running.sequences)):
                self.block(WaitReason.KV_BLOCKS)
                return None
            self.waiting.pop()
            self.prefetches.end(sequence)
            self._running.enter(sequence)
            self._count(sequence)
            return sequence
        self.block(WaitReason.SLOTS)
        return None

    def block(self, why: WaitReason) -> None:
        """Record why the waiting sequences wait, if there are any. Without a free slot, nothing else would help."""
        if self.waiting:
            self._blocked = why if self._running.slots.available else WaitReason.SLOTS, self.now_ns

    def preempt(self, why: WaitReason = WaitReason.KV_BLOCKS) -> SequenceState:
        """Preempt the running sequence with the highest order key and return it."""
        victim = self._running.pop()
        victim.phase = Phase.WAITING
        self._queued(victim, MarkKind.PREEMPTED, self.now_ns, why)
        self.waiting.push(victim)
        self._counters.preemptions += 1
        return victim

    def preempt_all(self, why: WaitReason) -> None:
        """Preempt all running sequences, between two steps."""
        self.now_ns = self._clock()
        while self._running.sequences:
            self.preempt(why)

    def look_ahead(self) -> None:
        """Start prefetches for sequences near the front of the queue."""
        tiers = self._kv.tiers
        if tiers is None or not self.prefetches.active:
            return
        free = self._running.slots.available
        front = self.waiting.front(self.prefetches.places(free))
        self.prefetches.keep_only(front)
        for sequence in front:
            if self.prefetches.full(free):
                return
            if sequence not in tiers.asked and self.prefetches.begin(sequence):
                self.waiting.leave(sequence)

    def forget(self, sequence: SequenceState, was: Phase) -> None:
        """Remove a sequence that has ended in phase `was`."""
        self.prefetches.end(sequence)
        if was is Phase.WAITING:
            self.waiting.leave(sequence)

    def _make_way(self, first: SequenceState) -> None:
        """Preempt running sequences with higher order keys than the first in the queue, if that frees enough blocks for
        it.

        A block that several preempted sequences share is counted for each of them. If too few blocks are free because
        of that, a later step preempts further sequences.
        """
        kv, running = self._kv, self._running.sequences
        behind = self._running.behind(first.queue.order_key)
        if not behind:
            return
        lacking = kv.lacking(first, sum(map(kv.growth, running)))
        if sum(map(kv.given_up, running[-behind:])) < lacking:
            return
        while behind and (lacking > 0 or not self._running.slots.available):
            behind -= 1
            lacking -= kv.given_up(running[-1])
            self.preempt(WaitReason.MORE_URGENT)

    def _queued(
        self, sequence: SequenceState, kind: MarkKind, at_ns: int, why: WaitReason = WaitReason.NOTHING
    ) -> None:
        sequence.report.waits_since_ns = at_ns
        sequence.report.mark(kind, at_ns, why=why)

    def _count(self, sequence: SequenceState) -> None:
        counters, report = self._counters, sequence.report
        why, at_ns = self._blocked
        why = why if at_ns >= report.waits_since_ns else WaitReason.NOTHING
        report.mark(MarkKind.SCHEDULED, self.now_ns, sequence.computed, why)
        if not report.admitted:
            report.admitted = True
            report.cached_tokens = sequence.computed
            counters.cache_query_tokens += sequence.prompt_len
            counters.cache_hit_tokens += sequence.computed

    def check_integrity(self, sequences: Sequence[SequenceState]) -> None:
        """Raise AssertionError if a waiting one of `sequences` is neither in the queue nor being prefetched."""
        phases = [s.phase for s in sequences]
        assert phases.count(Phase.WAITING) == len(self.waiting), "a waiting sequence is lost"
        aside = phases.count(Phase.PREFETCHING)
        assert aside == len(self.prefetches), "a sequence that waits for the disk is lost"
        self.prefetches.check_integrity(sequences)
        self.waiting.check_integrity()


class Arrivals:
    """Creates sequences from requests. `clock` gives nanoseconds and is the clock of requests' arrival times."""

    def __init__(
        self, limits: Limits, policy: Policy, kv: KvCacheManager, counters: Counters, clock: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._kv = kv
        self._counters = counters
        self._clock = clock

    def sequence(self, request: AddRequest) -> SequenceState:
        """Return a sequence with its order key, for a request that `limits.check_request` has accepted."""
        limits, counters, context, params = self._limits, self._counters, request.context, request.context.params
        prompt = Prompt.of(request.prompt_token_ids)
        prompt_len = len(prompt)
        max_tokens = limits.max_len if params.max_tokens is None else params.max_tokens
        stop_ids = frozenset(params.stop_token_ids)
        arrived_ns = context.arrived_ns or self._clock()
        due_ns = None if params.deadline is None else arrived_ns + int(params.deadline * SECOND_NS)
        scores = None if params.prompt_logprobs is None else list[bytes]()
        sequence = SequenceState(
            request_id=request.request_id,
            context=context,
            prompt=prompt,
            min_len=prompt_len + params.min_tokens,
            max_len=min(prompt_len + max_tokens, limits.max_len),
            stop_ids=stop_ids if params.ignore_eos else stop_ids | limits.eos_token_ids,
            queue=QueueEntry(counters.arrivals, arrived_ns, counters.computed_tokens, due_ns),
            kv=self._kv.new_kv(context.cache_salt),
            report=Report(scores, context.final_only and params.logprobs is None),
        )
        self.update_key(sequence)
        counters.arrivals += 1
        return sequence

    def update_key(self, sequence: SequenceState) -> None:
        """Compute the sequence's order key, after a new lookup of its cached tokens if the policy refreshes keys."""
        if self._policy.refreshes:
            sequence.queue.cached_tokens = self._kv.probe(sequence, sequence.queue.cached_tokens)
        sequence.queue.order_key = self._policy.order_key(sequence)
