"""Who is let in, in the order of ranks, and who gives way.

Nobody is admitted before the first in line, unless that one waits for the disk. A sequence is let in when there are a
slot and blocks for all that is known of it, and those that run keep a spare block each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plimsoll_runtime.engine.allocator import KvAllocator
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.policy import Policy
from plimsoll_runtime.engine.prefetches import Prefetches
from plimsoll_runtime.engine.running import RunningSequences
from plimsoll_runtime.engine.sequence import Phase, SequenceState
from plimsoll_runtime.engine.statistics import Counters
from plimsoll_runtime.engine.waiting import WaitingQueue


class Admission:
    """Sequences that wait, in line or aside while their prefix is read from the disk.

    `rerank` takes a waiting sequence's rank anew; `clock` gives nanoseconds.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        kv: KvAllocator,
        running: RunningSequences,
        counters: Counters,
        rerank: Callable[[SequenceState], None],
        clock: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._whole_prompts = limits.whole_prompts
        self._kv = kv
        self._running = running
        self._counters = counters
        self.waiting = WaitingQueue(rerank if policy.refreshes else None)
        self.prefetches = Prefetches(kv.tiers, limits.max_sequences, clock)

    def __len__(self) -> int:
        """Those that do not run."""
        return len(self.waiting) + len(self.prefetches)

    def add(self, sequence: SequenceState) -> None:
        """A sequence that has just arrived stands in line, or has its prefix read if it is near the front of it."""
        if self._kv.tiers is not None:
            self._kv.tiers.index.poll()
        near = len(self.waiting) < self.prefetches.places(self._running.slots.available)
        if not (near and self.prefetches.begin(sequence)):
            self.waiting.push(sequence)

    def begin_step(self) -> None:
        """See to it that the first in line is that still, and if the policy preempts, that there is room for it."""
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
        """How many could begin with a prompt, as far as slots go."""
        return min(len(self.waiting), self._running.slots.available)

    def next(self, before: SequenceState | None, budget: int) -> SequenceState | None:
        """Let the first in line in, which runs from now on; None where nobody is let in.

        Only if it ranks before a running one, if that is given; and where prompts are computed as wholes, only if the
        step has room for `budget` tokens and it has no more.
        """
        while self._running.slots.available:
            sequence = self.waiting.peek()
            if sequence is None or sequence.pending or (before is not None and sequence.rank > before.rank):
                return None
            if self._whole_prompts and sequence.length > budget:
                return None
            if self.prefetches.holds_up(sequence, self._running.slots.available):
                return None
            if self.prefetches.begin(sequence):
                self.waiting.leave(sequence)
                continue
            if not self._kv.admit(sequence, spare=len(self._running.sequences)):
                return None
            self.waiting.pop()
            self.prefetches.end(sequence)
            self._running.enter(sequence)
            self._count(sequence)
            return sequence
        return None

    def preempt(self) -> SequenceState:
        """The last of the running sequences gives way: it stands in line again, to be computed anew."""
        victim = self._running.pop()
        victim.phase = Phase.WAITING
        self.waiting.push(victim)
        self._counters.preemptions += 1
        return victim

    def look_ahead(self) -> None:
        """Have the disk read for those who wait and whose turn is near, ahead of it."""
        if not self.prefetches.active:
            return
        free = self._running.slots.available
        front = self.waiting.front(self.prefetches.places(free))
        self.prefetches.keep_only(front)
        for sequence in front:
            if self.prefetches.full(free):
                return
            if not sequence.sought and self.prefetches.begin(sequence):
                self.waiting.leave(sequence)

    def forget(self, sequence: SequenceState, was: Phase) -> None:
        """A sequence has ended, in whichever phase it was."""
        self.prefetches.end(sequence)
        if was is Phase.WAITING:
            self.waiting.leave(sequence)

    def _make_way(self, first: SequenceState) -> None:
        """Preempt running sequences that rank behind the first in line, if that lets it in.

        What several of them share is counted several times: then it gets in only with a later step, when more have
        given way.
        """
        kv, running = self._kv, self._running.sequences
        outranked = self._running.behind(first.rank)
        if not outranked:
            return
        lacking = kv.lacking(first, sum(map(kv.growth, running)))
        if sum(map(kv.given_up, running[-outranked:])) < lacking:
            return
        while outranked and (lacking > 0 or not self._running.slots.available):
            outranked -= 1
            lacking -= kv.given_up(running[-1])
            self.preempt()

    def _count(self, sequence: SequenceState) -> None:
        counters = self._counters
        counters.restored_tokens += sequence.restored
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached_tokens = sequence.computed
            counters.cache_query_tokens += sequence.prompt_len
            counters.cache_hit_tokens += sequence.computed

    def check_integrity(self, sequences: Sequence[SequenceState]) -> None:
        """Raises AssertionError where one of all `sequences` that waits is lost."""
        phases = [s.phase for s in sequences]
        assert phases.count(Phase.WAITING) == len(self.waiting), "a waiting sequence is lost"
        aside = phases.count(Phase.PREFETCHING)
        assert aside == len(self.prefetches), "a sequence that waits for the disk is lost"
        self.prefetches.check_integrity(sequences)
        self.waiting.check_integrity()
