"""A rank's side of steps: a rank that fails in a step does not keep the others waiting."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from model_support.tiny import COMMON
from parallel_support.ranks import JoinedRank, ThreadCollectives, on_layout, on_ranks
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.channel import Channel, Report, StepDone, StepShort, encoded
from plimsoll_runtime.parallel.collectives import CollectivesDifferError
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.links import SocketLink
from plimsoll_runtime.parallel.member import CountedCollectives, Passed, RankSteps
from plimsoll_runtime.parallel.rank import part_of
from plimsoll_runtime.parallel.shard import shard

WIDTHS = (48, 16, 48, 8)
"""Of the sums of a step, which differ so that a sum that was left out shows."""
SUMS = len(WIDTHS)
ROWS = 5
PASSED = Passed(torch.float32, torch.device("cpu"))


def program() -> Program:
    """Return a rank's program with these sums between its other ops."""
    from transformers import LlamaConfig

    config = {**LlamaConfig(**COMMON).to_dict(), "architectures": ["LlamaForCausalLM"]}
    whole = shard(program_of(describe(config)), 2, 0)
    others = tuple(op for op in whole.ops if not isinstance(op, Reduce))
    sums = tuple(Reduce(width, 2, ("added",), ("added",)) for width in WIDTHS)
    return replace(whole, ops=(others[0], *sums[:2], *others[1:], *sums[2:]))


class Recorded:
    """An exchange that records the tensors to add."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    @property
    def exchange(self) -> None:
        return None

    def add_up(self, part: Tensor) -> None:
        self.parts.append(part.clone())

    def gathered(self, data: bytes) -> list[bytes]:
        return [data]


def plan(*lengths: int) -> StepPlan:
    sequences = [ScheduledSequence(slot, 0, [7] * length, [], True) for slot, length in enumerate(lengths)]
    return StepPlan(sequences)


@pytest.mark.parametrize("reached", range(SUMS + 1))
def test_a_failed_rank_joins_the_sums_that_are_left(reached: int) -> None:
    inner = Recorded()
    counted = CountedCollectives(inner)
    counted.begin()
    for width in WIDTHS[:reached]:
        counted.sum(torch.ones(ROWS, width))
    counted.finish(program(), ROWS, PASSED)
    assert [part.shape for part in inner.parts] == [(ROWS, width) for width in WIDTHS]
    assert all(part.dtype == torch.float32 and not part.any() for part in inner.parts[reached:])


def test_each_step_counts_its_own_sums() -> None:
    inner = Recorded()
    counted = CountedCollectives(inner)
    for reached in (SUMS, 1, 0, 3):
        inner.parts.clear()
        counted.begin()
        for width in WIDTHS[:reached]:
            counted.sum(torch.ones(ROWS, width))
        counted.finish(program(), ROWS, PASSED)
        assert [part.shape[1] for part in inner.parts] == list(WIDTHS)


class Runner:
    """Computes the sums of each step. `failing`: after how many of them a step raises an error, by its number."""

    def __init__(self, collectives: CountedCollectives, timeline: Timeline, failing: dict[int, int]) -> None:
        self._collectives = collectives
        self._timeline = timeline
        self._failing = failing
        self._steps = 0
        self.totals: list[float] = []

    def run(self, plan: StepPlan) -> StepResult:
        fails_at = self._failing.get(self._steps)
        self._steps += 1
        for number, width in enumerate(WIDTHS):
            if number == fails_at:
                raise StepMemoryError(f"no memory for step {self._steps}")
            self.totals.append(float(self._collectives.sum(torch.ones(plan.num_tokens, width)).mean()))
        if fails_at == SUMS:
            raise StepMemoryError(f"no memory for step {self._steps}")
        self._timeline.lap(StepPhase.FORWARD)
        return StepResult([SequenceOutput(each.slot) for each in plan.sequences], 1)


def of_group(
    failing: Sequence[dict[int, int]], plans: Sequence[StepPlan], waiting: Callable[[], float] | None = None
) -> list[tuple[list[Report], list[float]]]:
    """Return the reports and the sums of each rank, whose failures are given, for these plans."""
    # Made here because transformers cannot be imported by several threads at once.
    outline = program()

    def of_rank(group: ThreadCollectives, number: int) -> tuple[list[Report], list[float]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            engine = Channel(ours, Report)
            for each in plans:
                engine.send(encoded(each))
            ours.shutdown(socket.SHUT_WR)
            counted, timeline = CountedCollectives(group), Timeline()
            runner = Runner(counted, timeline, failing[number])
            channel = Channel(theirs, StepPlan)
            RankSteps(channel, runner, timeline, counted, outline, PASSED, waiting=waiting).run()
            return [engine.receive() for _ in plans], runner.totals

    return list(on_ranks(len(failing), of_rank))


@pytest.mark.parametrize("reached", range(SUMS + 1))
@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_rank_without_memory_fails_alone_and_the_next_step_is_right(failed: int, reached: int) -> None:
    failing: list[dict[int, int]] = [{}, {}, {}]
    failing[failed] = {1: reached}
    ranks = of_group(failing, [plan(2, 1), plan(4), plan(1, 1, 1)])
    for number, (reports, totals) in enumerate(ranks):
        wrong = reached if number == failed else SUMS
        assert [isinstance(each, StepShort) for each in reports] == [False, number == failed, False]
        # The sums of a step are those of all ranks until one of them fails.
        assert totals[:SUMS] == totals[SUMS + wrong :] == [3.0] * SUMS
        assert totals[SUMS : SUMS + wrong] == [3.0] * min(reached, wrong) + [2.0] * (wrong - min(reached, wrong))
    short = ranks[failed][0][1]
    assert isinstance(short, StepShort)
    assert short.message == "no memory for step 2"


def test_results_have_outputs_phases_and_fallbacks() -> None:
    [(reports, _)] = of_group([{}], [plan(2, 1, 3)])
    [done] = reports
    assert isinstance(done, StepDone)
    assert [output.token_id for output in done.outputs] == [0, 1, 2]
    assert [phase for phase, _ in done.phases] == [StepPhase.FORWARD]
    assert done.attention_fallbacks == 1


def test_a_result_has_the_waiting_since_the_last_one() -> None:
    seconds = iter([1.0, 1.5, 1.75])
    [(reports, _)] = of_group([{}], [plan(2), plan(1)], waiting=lambda: next(seconds))
    assert [each.waited for each in reports if isinstance(each, StepDone)] == [0.5, 0.25]


# Stages

Exchange = Receive | Reduce | Send
NOTHING = StepPlan([], freed_slots=[1])
"""A plan that computes nothing, as one that only frees slots."""


class StageRunner:
    """Makes the exchanges of a stage's steps. `failing`: before which of them a step raises an error, by its number.

    The values that it sends are the number of the step.
    """

    def __init__(self, collectives: CountedCollectives, program: Program, failing: dict[int, int]) -> None:
        self._collectives = collectives
        self._exchanges = exchanges_of(program)
        self._failing = failing
        self._steps = 0
        self.received: list[float] = []
        self.totals: list[float] = []

    def run(self, plan: StepPlan) -> StepResult:
        fails_at, number, rows = self._failing.get(self._steps), self._steps, plan.num_tokens
        self._steps += 1
        if not plan.sequences:
            return StepResult(())
        for index, op in enumerate(self._exchanges):
            if index == fails_at:
                raise StepMemoryError(f"no memory for step {number}")
            match op:
                case Receive():
                    values = self._collectives.receive(rows, op.columns, torch.float32, torch.device("cpu"))
                    assert values.shape == (rows, op.columns)
                    self.received.append(float(values.mean()))
                case Reduce():
                    self.totals.append(float(self._collectives.sum(torch.ones(rows, op.width)).mean()))
                case Send():
                    self._collectives.send(torch.full((rows, op.columns), float(number)))
        if fails_at == len(self._exchanges):
            raise StepMemoryError(f"no memory for step {number}")
        return StepResult([SequenceOutput(each.slot) for each in plan.sequences])


def exchanges_of(program: Program) -> list[Exchange]:
    return [op for op in program.ops if isinstance(op, Receive | Reduce | Send)]


def of_stages(
    layout: Layout, parts: Sequence[Program], failing: dict[int, dict[int, int]], plans: Sequence[StepPlan]
) -> list[tuple[list[Report], StageRunner]]:
    """Return the reports of each rank and its runner, for plans that are all under way at once."""

    def of_rank(joined: JoinedRank, rank: int) -> tuple[list[Report], StageRunner]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            engine = Channel(ours, Report)
            for each in plans:
                engine.send(encoded(each))
            ours.shutdown(socket.SHUT_WR)
            counted, timeline = CountedCollectives(joined.stage, link=joined.link), Timeline()
            runner = StageRunner(counted, parts[rank], failing.get(rank, {}))
            RankSteps(Channel(theirs, StepPlan), runner, timeline, counted, parts[rank], PASSED).run()
            return [engine.receive() for _ in plans], runner

    return list(on_layout(layout, of_rank))


LAYOUT = Layout(2, 3)
RANKS = range(LAYOUT.size)


@pytest.fixture(scope="module")
def parts() -> list[Program]:
    """Return the programs of the ranks of three stages."""
    from transformers import LlamaConfig

    config = {**LlamaConfig(**COMMON).to_dict(), "architectures": ["LlamaForCausalLM"]}
    whole = program_of(describe(config))
    return [part_of(whole, LAYOUT, rank, in_kernels=False) for rank in RANKS]


@pytest.mark.parametrize("failed", RANKS)
def test_a_stage_without_memory_passes_on_values_and_the_next_step_is_right(failed: int, parts: list[Program]) -> None:
    """Before and after it has received, between and after its sums, and after it has sent."""
    exchanges = exchanges_of(parts[failed])
    for reached in range(len(exchanges) + 1):
        plans = [plan(2, 1), plan(4), NOTHING, plan(1, 1, 1)]
        found = of_stages(LAYOUT, parts, {failed: {1: reached}}, plans)
        for rank, (reports, runner) in enumerate(found):
            shorts = [isinstance(each, StepShort) for each in reports]
            assert shorts == [False, rank == failed, False, False]
            if LAYOUT.before(rank) is None:
                assert runner.received == []
                continue
            # The values of the short step are of no use; those of the others are their own.
            assert (runner.received[0], runner.received[-1]) == (0.0, 3.0)
            sends = len(exchanges) - 1
            if LAYOUT.before(rank) == failed:
                assert runner.received[1] == (0.0 if reached <= sends else 1.0)
            elif rank != failed:
                assert runner.received[1] == 1.0
            totals = [total for total in runner.totals if total != 2.0]
            assert rank in LAYOUT.together(failed) or not totals


def test_each_step_gets_its_own_values(parts: list[Program]) -> None:
    """Steps of the same size, so that nothing but the values differs."""
    for rank, (_, runner) in enumerate(of_stages(LAYOUT, parts, {}, [plan(1, 2)] * 6)):
        assert runner.received == ([] if LAYOUT.before(rank) is None else [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    # The values of a short step are not those of the step before.
    found = of_stages(LAYOUT, parts, {4: {3: 0}}, [plan(1, 2)] * 6)
    assert found[2][1].received == [0.0, 1.0, 2.0, 0.0, 4.0, 5.0]


def test_several_ranks_lack_memory_in_steps_under_way(parts: list[Program]) -> None:
    failing = {0: {1: 0, 2: 1}, 2: {2: 0}, 5: {1: 1, 4: 0}, 4: {4: 0}}
    plans = [plan(1), plan(3), plan(2, 2), NOTHING, plan(1), plan(5)]
    for rank, (reports, runner) in enumerate(of_stages(LAYOUT, parts, failing, plans)):
        short = {number for number, each in enumerate(reports) if isinstance(each, StepShort)}
        assert short == set(failing.get(rank, {}))
        if LAYOUT.before(rank) is not None:
            assert (runner.received[0], runner.received[-1]) == (0.0, 5.0)


def test_values_of_another_step_end_the_rank(parts: list[Program]) -> None:
    """A stage that skips a plan is noticed by the next one."""
    ours, theirs = socket.socketpair()
    first, second = (
        CountedCollectives(None, link=SocketLink(None, ours)),
        CountedCollectives(None, link=SocketLink(theirs, None)),
    )
    for counted in (first, first, second):
        counted.begin()
    first.send(torch.ones(2, 3))
    with pytest.raises(CollectivesDifferError, match=r"waits for 24 bytes of its step 1, .* of its step 2"):
        second.receive(2, 3, torch.float32, torch.device("cpu"))
    ours.close()
    theirs.close()
