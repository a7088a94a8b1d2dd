"""Runs of blocks: the same copies, in the fewest runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.kv.offload.host_memory import Run, runs

PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12)


@given(PAIRS)
def test_runs_are_the_pairs(pairs: list[tuple[int, int]]) -> None:
    found = [(run.source + i, run.target + i) for run in runs(pairs) for i in range(run.length)]
    assert len(found) == len({target for _, target in found}), "a target is written twice"
    assert {target: source for source, target in found} == {target: source for source, target in pairs}


@given(PAIRS)
def test_no_two_runs_are_one(pairs: list[tuple[int, int]]) -> None:
    found = runs(pairs)
    ends = {(run.source + run.length, run.target + run.length) for run in found}
    assert ends.isdisjoint((run.source, run.target) for run in found)


def test_numbers_that_rise_together_are_a_run() -> None:
    assert runs([(3, 8), (1, 6), (2, 7), (4, 10), (9, 5)]) == [Run(9, 5, 1), Run(1, 6, 3), Run(4, 10, 1)]
