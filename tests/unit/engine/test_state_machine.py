"""Random sequences of events: every request gets the output that it would get alone, and in time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kept import KeptBeside
from marked import MarkedRequest
from simulated import EOS, POISON, VOCAB, Answer, SimulatedRunner, oracle
from simulated_disk import disk_of

from plimsoll_runtime.engine.kv.cache_groups import (
    NOTHING_READ,
    ONE_FULL,
    Full,
    Rule,
    SlidingWindow,
    longest_within,
    sequence_blocks,
)
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext, RequestOutput, unpack
from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, MOST_FORCED
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.scheduler.admission import AHEAD_SHARE
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.policies import (
    SECOND_NS,
    ByPriority,
    EarliestDeadline,
    FirstComeFirstServed,
    LongestPrefix,
    Policy,
    ShortestJob,
)
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.engine.scheduler.token_budget import STEPS_ALONE
from plimsoll_runtime.engine.sequence import SequenceState

SHARED = [3 * i % VOCAB for i in range(60)]
"""Prompts begin with a piece of this, so that many share a prefix."""


@dataclass
class Expectation:
    """A request's expected output, its output so far, and the step by which it must end."""

    answer: Answer
    last_step: int
    work: int
    told: Answer
    sequence: SequenceState


WORTH = 2

MOST_BLOCKS = 4096
"""More blocks than any test has."""

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": lambda: ByPriority(level_ns=5 * SECOND_NS),
    "deadline": lambda: EarliestDeadline(default_ns=20 * SECOND_NS),
    "sjf": lambda: ShortestJob(stretch=2),
    "prefix": lambda: LongestPrefix(worth=WORTH),
}
"""Policies with favours small enough to end within a test."""


GROUPS: list[tuple[Rule, ...]] = [
    (Full(), SlidingWindow(3)),
    (Full(), SlidingWindow(5), SlidingWindow(5)),
    (SlidingWindow(4),),
    (SlidingWindow(1), SlidingWindow(9)),
    (Full(), Full(), SlidingWindow(8)),
]


@dataclass
class Shape:
    """A request before the sizes of the engine are known."""

    follows: int
    length: int
    whole_blocks: bool
    tail: list[int]
    salt: str
    params: SamplingParams


@st.composite
def request_shapes(draw: st.DrawFn) -> Shape:
    salt = draw(st.sampled_from(["", "", "", "a"]))
    max_tokens = draw(st.sampled_from([None, 24, 24]) | st.integers(1, 24))
    min_tokens = draw(st.sampled_from([0, 0, 3]))
    seed = draw(st.none() | st.none() | st.integers(-3, 3))
    params = SamplingParams(
        temperature=0.0 if seed is None else 1.0,
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens or min_tokens),
        stop_token_ids=draw(st.sampled_from([(), (), (), (), (1, 2, 3), (POISON,)])),
        stop=(salt,) if salt else (),
        seed=seed,
        ignore_eos=draw(st.sampled_from([True, True, False])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        priority=draw(st.integers(-2, 2)),
        deadline=draw(st.none() | st.none() | st.integers(1, 60)),
    )
    return Shape(
        follows=draw(st.integers(0, 3)),
        length=draw(st.sampled_from([4, 8, 8, 60]) | st.integers(0, 24)),
        whole_blocks=draw(st.booleans()),
        tail=draw(st.just([]) | st.lists(st.integers(0, POISON - 1), max_size=4)),
        salt=salt,
        params=params,
    )


class Engine(RuleBasedStateMachine):
    """Requests with shared prefixes and salts arrive and are aborted while steps run in pools that are too small.

    Up to `depth` steps are planned before the first of them is run and committed. A step takes a second.
    """

    policy = "fcfs"
    stages = 1
    groups: Sequence[Rule] = ONE_FULL
    recurrent = False
    forces = False
    snapshots = 0
    worth = 1

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.sampled_from([True, True, True, False]),
        depth=st.sampled_from([1, 1, 2, 3]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 8),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        budget: int,
        sequences: int,
        caching: bool,
        depth: int,
        burst: int | None,
        longest: int | None,
    ) -> None:
        self.begin(num_blocks, block_size, budget, sequences, caching, depth, burst, longest)

    def begin(
        self,
        num_blocks: int,
        block_size: int,
        budget: int,
        sequences: int,
        caching: bool,
        depth: int,
        burst: int | None,
        longest: int | None,
    ) -> None:
        self.limits = Limits(
            num_blocks=num_blocks,
            block_size=block_size,
            max_len=longest_within(self.groups, num_blocks - 1, block_size, (longest or num_blocks) * block_size),
            max_batch_tokens=budget,
            max_sequences=sequences,
            eos_token_ids=frozenset({EOS}),
            prefix_caching=caching,
            paced=burst is not None,
            burst_tokens=burst or budget,
            groups=tuple(self.groups),
            stages=self.stages,
            snapshots=self.snapshots,
            snapshot_worth=self.worth,
        )
        bursts = self.limits.burst_tokens
        alone = min(STEPS_ALONE, 2 * budget // bursts - 1) if bursts < budget else budget // bursts
        self.patience = depth * (1 + alone)
        self.now_ns = SECOND_NS
        sizes = (num_blocks, block_size, budget, sequences)
        ahead = MOST_FORCED if self.forces and (depth == 1 or self.stages > 1) else 0
        kind = {"recurrent": self.recurrent, "forces": self.forces}
        self.runner = SimulatedRunner(*sizes, self.groups, **kind, most_forced=ahead)
        self.scheduler = Scheduler(self.limits, POLICIES[self.policy](), lambda: self.now_ns, self.tiers())
        self.kept = KeptBeside(self.runner, MOST_BLOCKS)
        self.depth = depth
        self.steps: deque[Step] = deque()
        self.live: dict[str, Expectation] = {}
        self.marked: dict[str, MarkedRequest] = {}
        self.conversations = [SHARED]
        self.committed = 0
        self.count = 0
        self.wanted = num_blocks

    @rule(requests=st.lists(request_shapes(), min_size=1, max_size=4))
    def add(self, requests: list[Shape]) -> None:
        for shape in requests:
            prompt = self._prompt(shape)
            if prompt:
                context = RequestContext(shape.params, shape.params.output_seed(), shape.salt)
                self._add(AddRequest(f"r{self.count}", prompt, context))

    def _prompt(self, shape: Shape) -> list[int]:
        """Return a prompt: a piece of the shared tokens or of an earlier conversation, often whole blocks, and a
        tail.
        """
        base = self.conversations[shape.follows % len(self.conversations)]
        piece = base[: shape.length]
        if shape.whole_blocks and len(piece) > self.limits.block_size:
            piece = piece[: len(piece) // self.limits.block_size * self.limits.block_size]
        return (piece + shape.tail)[: self.limits.max_len - 1]

    def _add(self, request: AddRequest) -> None:
        self.count += 1
        self.scheduler.add(request)
        kind = {"recurrent": self.recurrent, "forces": self.forces}
        answer = oracle(request, self.limits.max_len, self.groups, **kind)
        self.conversations.append([*request.prompt_token_ids, *answer.token_ids])
        sequence = self.scheduler._sequences[request.request_id]
        work = len(request.prompt_token_ids) + len(answer.token_ids) + 1
        # The first sequence computes a token in every step in which it does not wait for its last one, once the running
        # sequences that are behind it have admitted it. Later sequences behind it cannot delay it. So a request must
        # have ended when all requests before it, all later ones that pass it, and itself would have ended one after the
        # other, each with the ones that it waits for. In a burst it is left out of some steps.
        behind = sum(e.work for e in self.live.values() if self._may_precede(sequence, work, e.sequence))
        for other in self.live.values():
            if self._may_precede(sequence, work, other.sequence):
                other.last_step += self.patience * (work + behind)
        before = sum(e.work for e in self.live.values())
        last_step = self.committed + self.patience * (before + work + behind)
        self.marked[request.request_id] = MarkedRequest(sequence, self.now_ns)
        self.live[request.request_id] = Expectation(answer, last_step, work, Answer(), sequence)

    def tiers(self) -> TierIndex | None:
        """The tiers for evicted blocks; None: no tiers."""
        return None

    def _may_precede(self, new: SequenceState, work: int, old: SequenceState) -> bool:
        """Return whether a new sequence can ever be ahead of an old one; its prefix may be found later."""
        if self.policy == "prefix":
            return new.queue.arrived_tokens - WORTH * work < old.queue.arrived_tokens
        return new.queue.order_key < old.queue.order_key

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.abort([name, "unknown"])
        del self.live[name]

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @rule(more=st.integers(0, 20))
    def resize(self, more: int) -> None:
        """Resize to the blocks of the longest sequence plus `more`."""
        self.wanted = sequence_blocks(self.groups, self.limits.max_len, self.limits.block_size) + 1 + more
        self.scheduler.resize(self.wanted)
        work = sum(e.work for e in self.live.values())
        for expectation in self.live.values():
            # Sequences that are preempted for a smaller pool are computed again.
            expectation.last_step += self.patience * work

    @rule()
    def forget_prefixes(self) -> None:
        self.scheduler.forget_prefixes()
        assert self.scheduler.stats().blocks_cached == 0

    @invariant()
    def records_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity(self.steps)

    def teardown(self) -> None:
        """All requests end, and nothing is left behind."""
        if not hasattr(self, "scheduler"):
            return
        while self.live:
            self._step()
        while self.steps:
            self._commit()
        self.records_agree()
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.blocks_used, len(self.scheduler)) == (0, 0, 0, 0)
        while self.scheduler.resizing:
            self._step()
        while self.steps:
            self._commit()
        stats = self.scheduler.stats()
        assert stats.blocks_total == self.wanted - 1
        assert {len(layer) for layer in self.runner.layers} == {self.wanted}

    def _step(self) -> None:
        """Plan until `depth` steps are in progress or no more can be planned, then run and commit the first."""
        for output in self.scheduler.expire():
            self._tell(output)
        assert all(self._in_time(e) for e in self.live.values())
        while len(self.steps) < self.depth:
            step = self._planned()
            self.records_agree_with(step)
            if step is None:
                break
            self.kept.planned(step.sequences)
            for sequence, entry in zip(step.sequences, step.plan.sequences, strict=True):
                self.marked[sequence.request_id].planned(entry)
            self.steps.append(step)
        if self.steps:
            self._commit()
        assert self.steps or not self.live or self.scheduler.stats().running + self.scheduler.stats().waiting

    def _planned(self) -> Step | None:
        return self.scheduler.schedule()

    def records_agree_with(self, step: Step | None) -> None:
        self.scheduler.check_integrity([*self.steps, *([step] if step is not None else [])])

    def _commit(self) -> None:
        step = self.steps.popleft()
        self.kept.begin(step.plan)
        result = self.runner.run(step.plan)
        self.kept.end(step.plan, result)
        self.now_ns += SECOND_NS
        outputs = self.scheduler.commit(step, result)
        # A step that changes the number of blocks computes nothing, and delays others only briefly.
        self.committed += step.plan.num_blocks is None
        names = [output.request_id for output in outputs]
        assert len(set(names)) == len(names), "a request has two outputs in one step"
        for output in outputs:
            self._tell(output)
        for name, expectation in self.live.items():
            assert self.committed <= expectation.last_step, f"{name} starves"

    def _in_time(self, expectation: Expectation) -> bool:
        due = expectation.sequence.queue.due_ns
        return due is None or self.now_ns < due or bool(expectation.told.token_ids)

    def _tell(self, output: RequestOutput) -> None:
        expectation = self.live[output.request_id]
        self.marked[output.request_id].sent(output, self.now_ns)
        if output.finish_reason == "deadline":
            assert not self._in_time(expectation)
            assert output.error is not None
            del self.live[output.request_id]
            return
        told = expectation.told
        if output.prompt_logprobs is not None:
            assert not told.token_ids, "prompt log probabilities come with the first token"
            told.prompt_logprobs = [entry.logprob for entry in unpack(output.prompt_logprobs)]
        told.token_ids.extend(output.token_ids)
        assert told.token_ids == expectation.answer.token_ids[: len(told.token_ids)]
        if output.finish_reason is not None:
            told.finish_reason = output.finish_reason
            assert told == expectation.answer
            assert (output.stop_token_id is not None) == (output.finish_reason == "stop")
            assert (output.error is not None) == (output.finish_reason == "error")
            del self.live[output.request_id]


class Priority(Engine):
    policy = "priority"


class Deadline(Engine):
    policy = "deadline"


class Shortest(Engine):
    policy = "sjf"


class Prefix(Engine):
    policy = "prefix"


class Grouped(Engine):
    """With cache groups of full attention, and others that release blocks."""

    @initialize(
        num_blocks=st.integers(24, 60),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.sampled_from([True, True, True, False]),
        depth=st.sampled_from([1, 1, 2, 3]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 30),
        groups=st.sampled_from(GROUPS),
    )
    def start(self, *, groups: Sequence[Rule], **sizes: Any) -> None:
        self.groups = groups
        self.begin(**sizes)


class Recurrent(Grouped):
    """With recurrent layers: in some runs with too few snapshot rows, or groups that attend to little or everything."""

    recurrent = True

    @initialize(
        num_blocks=st.integers(24, 60),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.just(True),
        depth=st.sampled_from([1, 1, 2, 3]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 30),
        groups=st.sampled_from([ONE_FULL, ONE_FULL, NOTHING_READ, *GROUPS]),
        snapshots=st.integers(1, 12),
        worth=st.sampled_from([1, 4, 8]),
    )
    def start(self, *, snapshots: int, worth: int, groups: Sequence[Rule], **sizes: Any) -> None:
        self.snapshots, self.groups = snapshots, groups
        self.worth = worth
        self.begin(**sizes)


class RecurrentPriority(Recurrent):
    policy = "priority"


class Tiered(Engine):
    """With host memory, a disk that sometimes fails, or both: outputs do not change, only times.

    In most runs the device copies asynchronously, and its copies end long after their steps.
    """

    def tiers(self) -> TierIndex:
        rng = random.Random(self.limits.num_blocks * 1000 + self.limits.max_batch_tokens)
        frames, places = rng.randint(1, 12), rng.choice([0, 2, 8, 30])
        self.ticks = rng.choice([0, 1, 4])
        self.disk = disk_of(self.runner, rng.choice([0.0, 0.1, 0.5]), seed=frames)
        keeps, copies = not places or rng.random() < 0.5, self.runner.frame_copies
        copies.lags = rng.random() < 0.7
        self.copies_passed = rng.choice([0, 1, 1, 3])
        return TierIndex(
            frames, places, self.disk if places else None, keeps=keeps, copies=copies if copies.lags else None
        )

    def _may_precede(self, new: SequenceState, work: int, old: SequenceState) -> bool:
        """A sequence that arrives while another waits for the disk may pass it."""
        return True

    @rule(shape=request_shapes(), lengths=st.lists(st.sampled_from([8, 12, 16, 24, 60]), min_size=8, max_size=24))
    def crowd(self, shape: Shape, lengths: list[int]) -> None:
        """Add so many requests with earlier prefixes at once that most of them are far from the front."""
        self.add([replace(shape, length=length, follows=i) for i, length in enumerate(lengths)])

    @invariant()
    def who_is_far_from_the_front_holds_no_frames(self) -> None:
        """At most as many sequences as may run or are near the front have prefetches."""
        if not hasattr(self, "scheduler"):
            return
        most = self.limits.max_sequences + max(1, self.limits.max_sequences // AHEAD_SHARE)
        tiers = self.scheduler._kv.tiers
        assert tiers is None or len(tiers.prefetches) <= most

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def forget_prefixes(self, really: bool = True) -> None:
        """Rarely, because otherwise hardly any requested block would be on the disk."""
        if really:
            super().forget_prefixes()

    @rule(count=st.integers(1, 8))
    def disk_works(self, count: int) -> None:
        self.disk.tick(count)

    @rule(count=st.integers(1, 4))
    def copies_pass(self, count: int) -> None:
        self.runner.frame_copies.pass_steps(count)

    @rule(ns=st.sampled_from([0, SECOND_NS // 10, 100 * SECOND_NS]))
    def disk_changes_pace(self, ns: int) -> None:
        """Blocks on disk may then be computed instead."""
        self.disk.read_ns = ns

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def disk_breaks(self, really: bool) -> None:
        if really:
            self.disk.give_up()

    def _step(self) -> None:
        """The disk works a little in each step; if nothing else is to be done, the scheduler waits for it."""
        self.disk.tick(self.ticks)
        self.runner.frame_copies.pass_steps(self.copies_passed)
        super()._step()
        if not self.steps:
            self.scheduler.await_prefetches(1)


class GroupedTiered(Grouped, Tiered):
    pass


class GroupedPriority(Grouped):
    policy = "priority"


class TieredPriority(Tiered):
    policy = "priority"


class Forced(Grouped):
    """With tokens that the grammar forces, returned together with the sampled one."""

    forces = True


class ForcedRecurrent(Recurrent):
    forces = True


class Staged(Engine):
    """With a step under way for each stage of a pipeline, each of which knows all its tokens."""

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.sampled_from([True, True, True, False]),
        depth=st.sampled_from([2, 3, 4]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 8),
    )
    def start(self, *, depth: int, **sizes: Any) -> None:
        self.stages = depth
        self.begin(depth=depth, **sizes)

    def _planned(self) -> Step | None:
        """Check what a pipeline needs of a step: known tokens, and a share of the decodes."""
        running = self.scheduler.stats().running
        step = super()._planned()
        if step is not None:
            pairs = list(zip(step.sequences, step.plan.sequences, strict=True))
            assert all(LAST_CHOSEN not in entry.token_ids for _, entry in pairs)
            assert all(sequence.pending <= 1 for sequence in step.sequences)
            decodes = sum(entry.start >= sequence.prompt_len for sequence, entry in pairs)
            most = -(-running // self.stages)
            recomputed = sum(bool(init.output_ids) for init in step.plan.new_slots)
            assert decodes <= most + recomputed
        return step


class StagedGrouped(Staged, Grouped):
    """With cache groups that release blocks."""

    @initialize(
        num_blocks=st.integers(24, 60),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.sampled_from([True, True, True, False]),
        depth=st.sampled_from([2, 3, 4]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 30),
        groups=st.sampled_from(GROUPS),
    )
    def start(self, *, groups: Sequence[Rule], depth: int, **sizes: Any) -> None:
        self.groups, self.stages = groups, depth
        self.begin(depth=depth, **sizes)


class StagedPriority(Staged):
    policy = "priority"


class StagedForced(Staged):
    """With tokens that the grammar forces: a step's next tokens are all known before another one has the sequence."""

    forces = True


class StagedRecurrent(Staged, Recurrent):
    """With recurrent layers, and snapshots of their states."""

    @initialize(
        num_blocks=st.integers(24, 60),
        block_size=st.sampled_from([1, 2, 2, 4]),
        budget=st.integers(1, 40),
        sequences=st.sampled_from([1, 2, 4, 8]),
        caching=st.just(True),
        depth=st.sampled_from([2, 3, 4]),
        burst=st.none() | st.integers(1, 12),
        longest=st.none() | st.integers(1, 30),
        groups=st.sampled_from([ONE_FULL, ONE_FULL, NOTHING_READ, *GROUPS]),
        snapshots=st.integers(1, 12),
        worth=st.sampled_from([1, 4, 8]),
    )
    def start(self, *, snapshots: int, worth: int, groups: Sequence[Rule], depth: int, **sizes: Any) -> None:
        self.snapshots, self.groups, self.worth, self.stages = snapshots, groups, worth, depth
        self.begin(depth=depth, **sizes)


for machine in (
    Engine,
    Staged,
    StagedGrouped,
    StagedPriority,
    StagedForced,
    StagedRecurrent,
    Grouped,
    GroupedTiered,
    GroupedPriority,
    Tiered,
    TieredPriority,
    Priority,
    Deadline,
    Shortest,
    Prefix,
    Recurrent,
    RecurrentPriority,
    Forced,
    ForcedRecurrent,
):
    machine.TestCase.settings = settings(
        max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
TestFcfs, TestTiered = Engine.TestCase, Tiered.TestCase
TestRecurrent, TestGrouped = Recurrent.TestCase, Grouped.TestCase
TestStaged, TestStagedGrouped = Staged.TestCase, pytest.mark.long(StagedGrouped.TestCase)
TestStagedPriority = pytest.mark.long(StagedPriority.TestCase)
TestStagedForced = pytest.mark.long(StagedForced.TestCase)
TestStagedRecurrent = pytest.mark.long(StagedRecurrent.TestCase)
TestPriority, TestDeadline = pytest.mark.long(Priority.TestCase), pytest.mark.long(Deadline.TestCase)
TestPrefix = pytest.mark.long(Prefix.TestCase)
TestShortest = pytest.mark.long(Shortest.TestCase)
TestTieredPriority = pytest.mark.long(TieredPriority.TestCase)
TestRecurrentPriority = pytest.mark.long(RecurrentPriority.TestCase)
TestGroupedTiered = pytest.mark.long(GroupedTiered.TestCase)
TestGroupedPriority = pytest.mark.long(GroupedPriority.TestCase)
TestForced, TestForcedRecurrent = pytest.mark.long(Forced.TestCase), pytest.mark.long(ForcedRecurrent.TestCase)
