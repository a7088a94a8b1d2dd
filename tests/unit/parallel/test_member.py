"""A rank's side of steps: a rank that fails in a step does not keep the others waiting."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from model_support.tiny import COMMON
from parallel_support.ranks import ThreadCollectives, on_ranks
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.channel import Channel, Report, StepDone, StepShort, encoded
from plimsoll_runtime.parallel.member import CountedCollectives, Passed, RankSteps
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


def of_group(failing: Sequence[dict[int, int]], plans: Sequence[StepPlan]) -> list[tuple[list[Report], list[float]]]:
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
            RankSteps(channel, runner, timeline, counted, outline, PASSED).run()
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
