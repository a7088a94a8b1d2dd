"""The scheduler: which sequences compute which tokens in the next step. Integers in, integers out.

Each step has a budget of tokens. Every sequence that decodes gets its one token; what is left goes to prompts, in
chunks if need be, the oldest first; then waiting requests are admitted while slots and blocks last. When blocks run
out, the sequence that was admitted last gives up its own and waits again, its tokens to be computed anew. The oldest
is never the victim of another, and every admitted request fits in an empty pool: so it always finishes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as ReadOnly

from plimsoll_runtime.engine.block_pool import BlockPool
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.policy import Policy
from plimsoll_runtime.engine.prefix_cache import BlockName, PrefixCache
from plimsoll_runtime.engine.sequence import NO_SLOT, Phase, Sequence
from plimsoll_runtime.engine.waiting import WaitingQueue


class Scheduler:
    """Sequences, their slots and their blocks. `schedule` and `commit` alternate; `add` and `remove` go between."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_batch_tokens: int,
        max_sequences: int,
        prefix_caching: bool,
        policy: Policy,
    ) -> None:
        self.block_size = block_size
        self._budget = max_batch_tokens
        self._prefix_caching = prefix_caching
        self.cache = PrefixCache()
        self.pool = BlockPool(num_blocks, on_take=self.cache.forget)
        self._waiting = WaitingQueue(policy)
        self._running: list[Sequence] = []
        self._free_slots = list(range(min(max_sequences, max_batch_tokens)))
        self._num_slots = len(self._free_slots)
        self._freed: list[int] = []
        self.preemptions = 0
        self.cache_query_tokens = 0
        self.cache_hit_tokens = 0

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences without one."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether there is any sequence."""
        return bool(self._running or len(self._waiting))

    def add(self, sequence: Sequence) -> None:
        """A sequence waits from now on. The caller has seen to it that it fits in an empty pool."""
        self._waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over, whether it runs or waits."""
        if sequence.phase is Phase.RUNNING:
            self._running.remove(sequence)
            self._give_up(sequence)
            sequence.phase = Phase.DONE
        elif sequence.phase is Phase.WAITING:
            sequence.phase = Phase.DONE
            self._waiting.discard()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; what runs keeps its blocks."""
        self.cache.clear()
        for sequence in self._running:
            sequence.num_named = sequence.num_computed // self.block_size

    def schedule(self) -> tuple[StepPlan, list[Sequence]]:
        """The next step, and its sequences in the plan's order."""
        new_slots: list[SlotInit] = []
        copies: list[tuple[int, int]] = []
        chosen = self._schedule_running()
        if sum(count for _, count in chosen) < self._budget:
            self._admit(chosen, new_slots, copies)
        chosen.sort(key=lambda item: item[1] > 1)
        plan = StepPlan(
            sequences=[self._scheduled(s, count) for s, count in chosen],
            freed_slots=self._freed,
            new_slots=new_slots,
            block_copies=copies,
        )
        self._freed = []
        return plan, [s for s, _ in chosen]

    def commit(self, sequence: Sequence, computed: int) -> None:
        """A step has computed `computed` more tokens of a sequence: its full blocks can be shared from now on."""
        sequence.num_computed += computed
        if not self._prefix_caching:
            return
        full = sequence.num_computed // self.block_size
        if full > sequence.num_named:
            names = sequence.names_up_to(full * self.block_size, self.block_size)
            for index in range(sequence.num_named, full):
                self.cache.add(names[index], sequence.block_ids[index])
            sequence.num_named = full

    def check_integrity(self) -> None:
        """Raises AssertionError when any two of the records disagree."""
        running = self._running
        self.pool.check_integrity(s.block_ids for s in running)
        assert all(s.phase is Phase.RUNNING for s in running), "a sequence runs and does not know it"
        slots = [s.slot for s in running]
        assert sorted([*slots, *self._free_slots]) == list(range(self._num_slots)), "slots are lost or shared"
        true_names: dict[int, BlockName] = {}
        for s in running:
            assert len(s.block_ids) * self.block_size >= s.num_computed, "a sequence lacks blocks"
            names = s.names_up_to(s.num_computed, self.block_size)
            for block, name in zip(s.block_ids, names, strict=False):
                assert true_names.setdefault(block, name) == name, "two prefixes share a block"
            self._check_private_tail(s, len(names))
        self.cache.check_integrity(true_names.get)

    def _check_private_tail(self, sequence: Sequence, full: int) -> None:
        """Blocks that are still written to belong to one sequence only and have no name."""
        tail = set(sequence.block_ids[full:])
        for other in self._running:
            assert other is sequence or tail.isdisjoint(other.block_ids), "a block that is written to is shared"
        assert not any(self.cache.holds(block) for block in tail), "a block that is written to is in the cache"

    def _schedule_running(self) -> list[tuple[Sequence, int]]:
        """Tokens of the sequences that have a slot, the oldest first; the newest are preempted for blocks."""
        chosen: list[tuple[Sequence, int]] = []
        budget = self._budget
        decodes = sum(s.num_left == 1 for s in self._running)
        index = 0
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            decodes -= sequence.num_left == 1
            count = min(sequence.num_left, max(budget - decodes, 1))
            if not self._provide_blocks(sequence, sequence.num_computed + count):
                break
            chosen.append((sequence, count))
            budget -= count
            index += 1
        return chosen

    def _provide_blocks(self, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for so many tokens; False when the sequence itself had to be preempted for want of them."""
        missing = -(-num_tokens // self.block_size) - len(sequence.block_ids)
        while missing > self.pool.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_ids.extend(self.pool.take(missing))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._give_up(sequence)
        sequence.phase = Phase.WAITING
        sequence.num_computed = sequence.num_named = 0
        self._waiting.push(sequence)
        self.preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Return a running sequence's blocks and slot."""
        self.pool.release(sequence.block_ids, worthless=lambda block: not self.cache.holds(block))
        sequence.block_ids = []
        heapq.heappush(self._free_slots, sequence.slot)
        self._freed.append(sequence.slot)
        sequence.slot = NO_SLOT

    def _admit(
        self, chosen: list[tuple[Sequence, int]], new_slots: list[SlotInit], copies: list[tuple[int, int]]
    ) -> None:
        """Waiting sequences take slots while there are slots, blocks and tokens left."""
        budget = self._budget - sum(count for _, count in chosen)
        while budget > 0 and self._free_slots and len(chosen) == len(self._running):
            sequence = self._waiting.first()
            if sequence is None:
                return
            shared, copied = self._cached(sequence)
            total = -(-len(sequence.tokens) // self.block_size)
            revived = sum(self.pool.is_free(block) for block in shared)
            margin = len(self._running)
            if self._running and total - len(shared) + revived + margin > self.pool.num_free:
                return
            self._waiting.pop()
            self._start(sequence, shared, copied, total, copies)
            new_slots.append(self._slot_init(sequence))
            count = min(sequence.num_left, budget)
            chosen.append((sequence, count))
            budget -= count

    def _cached(self, sequence: Sequence) -> tuple[list[int], int | None]:
        """Blocks that a sequence can share, and one to copy when all of its tokens are cached.

        The last token is computed in any case, for its logits: it must not be written into a shared block.
        """
        if not self._prefix_caching:
            return [], None
        usable = len(sequence.prompt_logprobs) if sequence.wants_prompt_logprobs else len(sequence.tokens)
        found = self.cache.find(sequence.names_up_to(usable, self.block_size))
        if found and len(found) * self.block_size == len(sequence.tokens):
            return found[:-1], found[-1]
        return found, None

    def _start(
        self,
        sequence: Sequence,
        shared: list[int],
        copied: int | None,
        total: int,
        copies: list[tuple[int, int]],
    ) -> None:
        self.pool.share(shared)
        sequence.block_ids = [*shared, *self.pool.take(total - len(shared))]
        sequence.num_computed = len(shared) * self.block_size
        sequence.num_named = len(shared)
        if copied is not None:
            copies.append((copied, sequence.block_ids[-1]))
            sequence.num_computed = len(sequence.tokens) - 1
        self.cache_query_tokens += len(sequence.tokens)
        self.cache_hit_tokens += sequence.num_computed
        if sequence.num_outputs == 0:
            sequence.cached_tokens = sequence.num_computed
        sequence.phase = Phase.RUNNING
        sequence.slot = heapq.heappop(self._free_slots)
        self._running.append(sequence)

    @staticmethod
    def _slot_init(sequence: Sequence) -> SlotInit:
        return SlotInit(
            slot=sequence.slot,
            params=sequence.params,
            seed=sequence.seed,
            prompt_ids=sequence.tokens[: sequence.prompt_len],
            output_ids=sequence.tokens[sequence.prompt_len :],
        )

    @staticmethod
    def _scheduled(sequence: Sequence, count: int) -> ScheduledSequence:
        start = sequence.num_computed
        end = start + count
        targets: ReadOnly[int] = ()
        if sequence.wants_prompt_logprobs:
            targets = sequence.tokens[start + 1 : min(end + 1, sequence.prompt_len)]
        return ScheduledSequence(
            slot=sequence.slot,
            start=start,
            token_ids=sequence.tokens[start:end],
            block_ids=list(sequence.block_ids),
            sample=end == len(sequence.tokens),
            prompt_targets=targets,
        )
