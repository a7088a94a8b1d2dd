"""Steps under way in a pipeline: decodes are shared among them, and a prompt's chunks follow each other."""

from __future__ import annotations

from collections import deque

import pytest
from builders import request
from simulated import SimulatedRunner

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.policies import FirstComeFirstServed
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler

SIZES = (200, 4, 16, 16)
"""Blocks, tokens of a block, tokens of a step, sequences."""


class Driven:
    """A scheduler with a simulated runner. `steps` are under way."""

    def __init__(self, stages: int) -> None:
        blocks, block_size, tokens, sequences = SIZES
        limits = Limits(blocks, block_size, 256, tokens, sequences, stages=stages)
        self.scheduler = Scheduler(limits, FirstComeFirstServed(), lambda: 0)
        self.steps: deque[Step] = deque()
        self._runner = SimulatedRunner(*SIZES)
        self._stages = stages

    def plan(self) -> None:
        while len(self.steps) < self._stages and (step := self.scheduler.schedule()) is not None:
            self.steps.append(step)

    def commit(self) -> None:
        step = self.steps.popleft()
        self.scheduler.commit(step, self._runner.run(step.plan))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_decodes_are_shared_among_the_steps_under_way(stages: int, count: int) -> None:
    driven = Driven(stages)
    for number in range(count):
        driven.scheduler.add(request(f"r{number}", [number, 1], max_tokens=60))
    for step in range(60):
        driven.plan()
        if step > 20:
            sizes = [len(each.sequences) for each in driven.steps]
            assert sum(sizes) == count
            assert max(sizes) == -(-count // stages)
        driven.commit()
        driven.scheduler.check_integrity(driven.steps)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_chunks_of_one_prompt_are_under_way_at_once(stages: int) -> None:
    driven = Driven(stages)
    driven.scheduler.add(request("r", list(range(40)) * 2, max_tokens=2))
    driven.plan()
    assert [each.plan.sequences[0].start for each in driven.steps] == [16 * step for step in range(stages)]
    assert not any(each.plan.sequences[0].sample for each in driven.steps)
