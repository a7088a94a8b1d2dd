"""An engine counts the steps that it has run: their sizes, and the amounts of their work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from builders import drain, make_core, request
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.messages import GraphStats
from plimsoll_runtime.engine.protocol.plan import Launched, ScheduledSequence, StepPlan
from plimsoll_runtime.engine.work.counter import SEQUENCE_BOUNDS, TOKEN_BOUNDS, StepCounts
from plimsoll_runtime.engine.work.model import PLAIN
from plimsoll_runtime.execution.parts import GraphCounts


class Recording:
    """A runner that keeps the plans of its steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> Launched:
        self.plans.append(plan)
        return self._runner.run(plan)


def buckets(values: Sequence[int], bounds: Sequence[int]) -> list[int]:
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


@given(prompts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_all_steps_are_counted(prompts: list[int]) -> None:
    recording: list[Recording] = []

    def wrap(runner: Runner) -> Runner:
        recording.append(Recording(runner))
        return recording[0]

    core, _ = make_core(wrap=wrap)
    for number, length in enumerate(prompts):
        core.add(request(str(number), [1] * length, max_tokens=5))
    drain(core)
    plans, stats = [plan for plan in recording[0].plans if plan.sequences], core.stats
    tokens, sequences = [plan.num_tokens for plan in plans], [len(plan.sequences) for plan in plans]
    assert list(stats.step_tokens) == buckets(tokens, TOKEN_BOUNDS)
    assert list(stats.step_sequences) == buckets(sequences, SEQUENCE_BOUNDS)
    sampled = sum(each.sample for plan in plans for each in plan.sequences)
    expected = (len(plans), sum(tokens), sum(sequences), sampled)
    assert stats.amounts[: len(expected)] == expected
    assert len(stats.amounts) == len(PLAIN)


@given(size=st.integers(1, 40_000), sequences=st.integers(1, 3_000))
def test_each_size_has_its_bucket(size: int, sequences: int) -> None:
    counts, entry = StepCounts(), ScheduledSequence(0, 0, [0], (), False)
    counts.add([], 0)
    assert sum(counts.tokens) == sum(counts.sequences) == sum(counts.amounts) == 0
    counts.add([entry] * sequences, size)
    assert counts.tokens == buckets([size], TOKEN_BOUNDS)
    assert counts.sequences == buckets([sequences], SEQUENCE_BOUNDS)


def test_a_replaced_attention_backend_and_graphs_are_reported() -> None:
    """The names and counts are those of the passes; what the warm-up counted is forgotten."""
    plain, runner = make_core()
    replays = GraphCounts(replayed=9, launched=9, padding=9)
    passes = SimpleNamespace(backend_name="second", replays=replays)
    fallbacks = [0, 1]

    def run(plan: StepPlan) -> Launched:
        replays.replayed, replays.padding = replays.replayed + 1, replays.padding + 3
        return replace(runner.run(plan), attention_fallbacks=fallbacks.pop(0) if len(fallbacks) > 1 else fallbacks[0])

    config = EngineConfig(model="simulated", overlap=False, max_batch_tokens=16, max_sequences=4)
    core = EngineCore(config, plain.info, SimpleNamespace(run=run), passes=passes)
    assert core.stats.graphs == GraphStats()
    core.add(request("a", [1, 2, 3], max_tokens=2))
    core.step()
    assert core.stats.attention_backend == ""
    core.step()
    assert core.stats.attention_backend == "second"
    assert core.stats.graphs == GraphStats(replayed=2, padding=6)
    assert plain.stats.graphs is None
