"""Ranks of a group have the same graphs, whichever of them fails, lacks memory or has another clock."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support.tiny import COMMON
from parallel_support.graphs import BLOCK, ROWS, SLOTS, GraphRank
from parallel_support.ranks import ThreadCollectives, on_ranks
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan, TableChange
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.execution.graphs.capture import (
    CaptureBounds,
    CaptureRequest,
    batch_buckets,
    capture_all,
    no_progress,
    row_buckets,
)
from plimsoll_runtime.execution.graphs.decode import KIND as DECODES
from plimsoll_runtime.execution.graphs.piecewise import KIND as PIECES
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.captures import RanksAgreement, merged
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.member import CountedCollectives, Passed, UnfinishedStepError
from plimsoll_runtime.parallel.rank import Rank

WIDE = CaptureBounds(math.inf, 2**40)
RANKS = 2
"""With two key heads and one, of three."""
BUCKETS = batch_buckets(SLOTS)
PIECE_BUCKETS = row_buckets(ROWS)
Failing = dict[tuple[str, int], int | Exception]


@pytest.fixture(scope="module")
def whole() -> Program:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
    return program_of(describe({**COMMON, **heads, "architectures": ["LlamaForCausalLM"]}))


class Clock:
    """A clock whose every reading is `seconds` later than the last one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._seconds
        return self._now


def chunk(slot: int, tokens: Sequence[int], start: int = 0) -> ScheduledSequence:
    blocks = [1 + slot * 8 + number for number in range(8)]
    changes = [TableChange(0, 0, 0, blocks)] if start == 0 else []
    return ScheduledSequence(slot, start, list(tokens), changes, sample=True)


PLANS = [
    StepPlan([chunk(0, range(3, 13)), chunk(1, [5, 6, 7])]),
    StepPlan([chunk(0, [4], 10), chunk(1, [9], 3)]),
    StepPlan([chunk(0, [8], 11), chunk(1, [2], 4), chunk(2, range(4))]),
    StepPlan([chunk(0, [8], 12), chunk(1, [2], 5), chunk(2, [7], 4)]),
    StepPlan([chunk(1, [1], 6)]),
    StepPlan([chunk(3, range(20))]),
]
assert BLOCK * 8 > 20


@torch.inference_mode()
def built(
    group: ThreadCollectives,
    number: int,
    whole: Program,
    *,
    ranks: int = RANKS,
    bounds: CaptureBounds | None = WIDE,
    seconds: float = 0.0,
    failing: Failing | None = None,
    graph_bytes: int = 0,
) -> GraphRank:
    """Return a rank that has captured its graphs (unless `bounds` is None) and run all steps."""
    rank = GraphRank(group, number, ranks, whole, failing, graph_bytes)
    if bounds is not None:
        rank.forward_pass.capture_graphs(rank.capture, bounds, clock=Clock(seconds))
    for plan in PLANS:
        rank.collectives.begin()
        rank.runner.run(plan).result()
        sums = sum(isinstance(op, Reduce) for op in rank.part.ops)
        assert rank.collectives.sums == sums, "also those of replays are counted"
    return rank


def captured(rank: GraphRank) -> tuple[set[int], set[int]]:
    """Return the numbers of decodes and of rows that the rank has graphs for."""
    decodes: Any = rank.decodes._graphs
    return {key[0] for key in decodes}, set(rank.pieces._passes)


@pytest.fixture(scope="module")
def expected(whole: Program) -> list[Tensor]:
    """Return the hidden states of one rank with the whole model, without graphs."""
    [rank] = on_ranks(1, lambda group, number: built(group, number, whole, ranks=1, bounds=None))
    return rank.forward_pass.hidden


def assert_right(ranks: Sequence[GraphRank], expected: Sequence[Tensor]) -> None:
    for rank in ranks:
        for found, wanted in zip(rank.forward_pass.hidden, expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)


def test_all_ranks_capture_the_same_sums_in_the_same_order(whole: Program, expected: list[Tensor]) -> None:
    ranks = on_ranks(RANKS, lambda group, number: built(group, number, whole))
    assert [captured(rank) for rank in ranks] == [(set(BUCKETS), set(PIECE_BUCKETS))] * RANKS
    assert [len(rank.decodes._graphs) for rank in ranks] == [2 * len(BUCKETS), len(BUCKETS)], "by their key heads"
    widths = [op.width for op in ranks[0].part.ops if isinstance(op, Reduce)]
    for rank in ranks:
        of_decodes = [graph for graph in rank.recorder.graphs if len(graph) == len(widths)]
        assert of_decodes == [widths] * len(rank.decodes._graphs)
        pieces = [width for graph in rank.recorder.graphs if len(graph) < len(widths) for width in graph]
        assert pieces == widths * len(PIECE_BUCKETS)
    assert len({rank.recorder.replays for rank in ranks}) == 1
    assert ranks[0].recorder.replays == len(PLANS) * len(widths), "every step is replayed"
    assert_right(ranks, expected)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("failed", range(RANKS))
def test_a_graph_that_one_rank_cannot_capture_is_dropped_by_all(
    whole: Program, expected: list[Tensor], failed: int, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind is not tried again. The failing rank has recorded `at` sums, for which no other rank waits."""
    failing: Failing = {(DECODES, 2): at}
    ranks = on_ranks(
        RANKS, lambda group, number: built(group, number, whole, failing=failing if number == failed else None)
    )
    # The largest sizes come first, then the rising ones.
    assert [captured(rank) for rank in ranks] == [({1}, set(PIECE_BUCKETS))] * RANKS
    assert_right(ranks, expected)
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert (
        warnings
        == [
            f"no CUDA graph for 2 decodes (operation not permitted when stream is capturing of rank {failed}): sizes "
            "without one are launched kernel by kernel"
        ]
        * RANKS
    )


def test_the_pieces_of_a_size_are_dropped_together(whole: Program, expected: list[Tensor]) -> None:
    failing: Failing = {(PIECES, PIECE_BUCKETS[0]): 0}
    ranks = on_ranks(RANKS, lambda group, number: built(group, number, whole, failing=failing if number else None))
    assert [captured(rank) for rank in ranks] == [(set(BUCKETS), {PIECE_BUCKETS[-1]})] * RANKS
    assert_right(ranks, expected)


@pytest.mark.parametrize("failed", range(RANKS))
def test_a_rank_without_memory_ends_the_captures_of_all(whole: Program, expected: list[Tensor], failed: int) -> None:
    failing: Failing = {(DECODES, 2): torch.OutOfMemoryError("no memory for a graph")}
    ranks = on_ranks(
        RANKS, lambda group, number: built(group, number, whole, failing=failing if number == failed else None)
    )
    assert [captured(rank) for rank in ranks] == [({1}, {PIECE_BUCKETS[-1]})] * RANKS
    assert_right(ranks, expected)


def test_the_memory_of_each_rank_counts(whole: Program, expected: list[Tensor]) -> None:
    """Rank 1 reaches the bound in its third graph, and rank 0, whose graphs take nothing, never."""
    bounds = replace(WIDE, nbytes=20)
    ranks = on_ranks(RANKS, lambda group, number: built(group, number, whole, bounds=bounds, graph_bytes=3 * number))
    assert [captured(rank) for rank in ranks] == [({1, 2}, {PIECE_BUCKETS[-1]})] * RANKS
    assert_right(ranks, expected)


@pytest.mark.parametrize("seconds", [(1.0, 0.0), (0.0, 1.0), (0.5, 5.0), (0.5, 0.01)])
def test_the_clock_of_rank_0_decides(whole: Program, expected: list[Tensor], seconds: tuple[float, float]) -> None:
    bounds = replace(WIDE, seconds=3.5)
    ranks = on_ranks(RANKS, lambda group, number: built(group, number, whole, bounds=bounds, seconds=seconds[number]))
    assert captured(ranks[0]) == captured(ranks[1])
    # A reading at the start of all, one at that of the list, and one before each graph.
    most = {1.0: 2, 0.5: 5}.get(seconds[0], len(BUCKETS) + len(PIECE_BUCKETS))
    assert sum(map(len, captured(ranks[0]))) == most
    assert_right(ranks, expected)


def test_a_failed_device_ends_its_rank(whole: Program) -> None:
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")

    def of_rank(group: ThreadCollectives, number: int) -> None:
        with pytest.raises(RuntimeError) as raised:
            built(group, number, whole, failing={(DECODES, 1): fault} if number == 1 else None)
        # The other rank waits until the first one's process ends, here until its thread gives up.
        assert raised.value is fault if number == 1 else isinstance(raised.value, threading.BrokenBarrierError)
        raise raised.value

    with pytest.raises(RuntimeError):
        on_ranks(RANKS, of_rank)


def test_a_graph_that_fails_while_serving_ends_the_step(whole: Program) -> None:
    """The generation of ranks ends with it: the others have made sums that this rank cannot make again."""

    def of_rank(group: ThreadCollectives, number: int) -> None:
        rank = GraphRank(group, number, 1, whole)
        with torch.inference_mode():
            rank.forward_pass.capture_graphs(rank.capture, WIDE)
            graphs: Any = rank.pieces._passes
            graphs[PIECE_BUCKETS[0]][0] = lambda step: (_ for _ in ()).throw(TypeError("cannot be replayed"))
            rank.runner.run(PLANS[0])

    with pytest.raises(TypeError, match="cannot be replayed"):
        on_ranks(1, of_rank)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize(("plan", "replayed"), [(0, True), (5, True), (6, False)])
def test_a_rank_without_memory_in_a_step(whole: Program, plan: int, replayed: bool, at: int) -> None:
    """A rank that was launching sums joins the others. One with a graph cannot: the graph's sums have more rows."""
    plans = [*PLANS, StepPlan([chunk(3, [7] * (ROWS + 6))])]

    def of_rank(group: ThreadCollectives, number: int) -> str:
        rank = built(group, number, whole)
        rank.collectives.begin()
        if number == 0:
            backend: Any = rank.forward_pass.backend
            backend.fails_at = at
        try:
            rank.runner.run(plans[plan])
        except StepMemoryError:
            rank.collectives.finish(rank.part, plans[plan].num_tokens, Passed(torch.float32, torch.device("cpu")))
            return "short"
        return "done"

    layers = len(whole.facts.attention)
    if replayed and at < layers:
        with pytest.raises(UnfinishedStepError, match=f"before {2 * (layers - at)} of its sums, which are in a graph"):
            on_ranks(RANKS, of_rank)
    else:
        assert on_ranks(RANKS, of_rank) == ["short" if at < layers else "done", "done"]


class Requests:
    """Fake graphs of one rank. `failing`: those that it cannot capture. A capture takes `size` bytes."""

    def __init__(self, rows: Sequence[int], failing: Sequence[tuple[str, int]], size: int) -> None:
        self.kept: list[tuple[str, int]] = []
        self.tried: list[tuple[str, int]] = []
        self._failing = failing
        self._size = size
        self.wanted = [self._request(kind, each) for each in rows for kind in ("decodes", "rows of chunks")]

    @property
    def used(self) -> int:
        return self._size * len(self.kept)

    def __call__(self, work: Any) -> Any:
        raise NotImplementedError

    def _request(self, kind: str, rows: int) -> CaptureRequest:
        name = kind, rows

        def add() -> None:
            self.tried.append(name)
            self.kept.append(name)
            if name in self._failing:
                raise ValueError(f"{name} fails")

        def drop() -> None:
            if name in self.kept:
                self.kept.remove(name)

        return CaptureRequest(kind, rows, add, drop)


NAMES = st.tuples(st.sampled_from(["decodes", "rows of chunks"]), st.integers(1, 4))
RANK = st.tuples(st.sets(st.integers(1, 5), min_size=1), st.sets(NAMES, max_size=2), st.integers(0, 3), st.floats(0, 3))


@settings(max_examples=40)
@given(ranks=st.lists(RANK, min_size=1, max_size=3))
def test_lists_are_the_same_for_all_failures(ranks: list[tuple[set[int], set[tuple[str, int]], int, float]]) -> None:
    """Also if the ranks want different graphs."""
    program: Any = Program(None, (Reduce(3, 2, ("x",), ("x",)),), None)  # type: ignore[arg-type]

    def of_rank(group: ThreadCollectives, number: int) -> Requests:
        rows, failing, size, seconds = ranks[number]
        own = Requests(sorted(rows), sorted(failing), size)
        agreement = RanksAgreement(Rank(number, Layout(len(ranks)), 1, group, CountedCollectives(group)), program)
        bounds = CaptureBounds(5.0 if number == 0 else math.inf, 8)
        capture_all(agreement.common(merged(own.wanted)), own, bounds, no_progress, Clock(seconds), agreement)
        return own

    found = on_ranks(len(ranks), of_rank)
    assert all((each.tried, each.kept) == (found[0].tried, found[0].kept) for each in found)
    failing = set().union(*(failing for _, failing, _, _ in ranks))
    assert failing.isdisjoint(found[0].kept)
