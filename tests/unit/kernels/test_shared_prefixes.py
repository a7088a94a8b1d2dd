"""Decodes whose tables begin with the same blocks equal the reference, which reads each sequence separately."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import paged_attention
from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_kernels.paged_attention.prefix.tiles import prefix_splits, tile_members
from plimsoll_kernels.paged_attention.terms import ScoreTerms

MOST_GROUPS = 3
Group = tuple[int, Sequence[int]]
"""Shared blocks, and each member's tokens after them."""


@dataclass
class Shared:
    """A batch over a cache whose unused cells are NaN, and the same batch without prefixes."""

    query: Tensor
    keys: Tensor
    values: Tensor
    batch: PagedBatch
    alone: PagedBatch

    def expected(self, **options: Any) -> Tensor:
        return paged_attention(
            self.query, self.keys, self.values, self.alone, implementation="reference", **{"scale": 0.2, **options}
        )

    def run(self, splits: int = 1, prefix_splits: int = 2, **options: Any) -> Tensor:
        """Return the decodes' rows; NaN in the others."""
        from plimsoll_kernels.paged_attention.decode.kernel import launch_decode

        out = torch.full_like(self.query, math.nan)
        terms = ScoreTerms(**{"scale": 0.2, **options})
        launch_decode(
            out, self.query, self.keys, self.values, self.batch, terms, splits=splits, prefix_splits=prefix_splits
        )
        return out


def make(
    groups: Sequence[Group],
    others: Sequence[tuple[int, int]] = (),
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Shared:
    """Return shuffled sequences of all groups, and others of (rows, context). Only the first member of a group has the
    shared blocks in its table, because kernels read them there.
    """
    generator, order = torch.Generator().manual_seed(seed), random.Random(seed)
    sequences: list[tuple[int, int, list[int], int | None]] = []  # rows, context, table, group
    free = iter(range(1, 10_000))

    def blocks(tokens: int) -> list[int]:
        return [next(free) for _ in range(-(-tokens // block_size))]

    for number, (count, behind) in enumerate(groups):
        prefix = blocks(count * block_size)
        sequences += [(1, count * block_size + own, prefix + blocks(own), number) for own in behind]
    sequences += [(rows, context, blocks(context), None) for rows, context in others]
    order.shuffle(sequences)
    used = next(free)
    numbers = [0, *order.sample(range(1, used + 4), used - 1)]
    tables = [[numbers[block] for block in table] for _, _, table, _ in sequences]
    keys, values = (torch.full((kv_heads, used + 4, block_size, size), math.nan) for _ in range(2))
    for (_, context, _, _), table in zip(sequences, tables, strict=True):
        for cache in (keys, values):
            fresh = torch.randn(kv_heads, len(table) * block_size, size, generator=generator)
            fresh[:, context:] = math.nan
            cache[:, table] = fresh.view(kv_heads, len(table), block_size, size)
    rows, contexts = [s[0] for s in sequences], [s[1] for s in sequences]
    query = torch.randn(sum(rows), heads, size, generator=generator)
    alone = PagedBatch.of(rows, contexts, tables, device)

    members = [[i for i, s in enumerate(sequences) if s[3] == number] for number in range(len(groups))]
    starts = [sum(map(len, members[:number])) for number in range(MOST_GROUPS + 1)]
    shared = [0 if s[3] is None else groups[s[3]][0] * block_size for s in sequences]
    listed = [i for each in members for i in each]
    unread = [0] * (len(sequences) - len(listed))
    numbers_sent = torch.tensor([*listed, *unread, *shared, *starts], dtype=torch.int32, device=device)
    unknown = alone.block_tables.clone()
    for (count, _), each in zip(groups, members, strict=True):
        for follower in each[1:]:
            unknown[follower, :count] = 0
    batch = replace(alone, block_tables=unknown, prefixes=PrefixTables.of(numbers_sent, len(sequences)))
    query, keys, values = (x.to(device, dtype) for x in (query, keys, values))
    return Shared(query, keys, values, batch, alone)


def decodes(case: Shared) -> Tensor:
    """Return for each row, [T], whether it is its sequence's only one."""
    rows = case.alone.query_starts.diff()
    return (rows == 1).repeat_interleave(rows)


def expect_equal(case: Shared, tolerance: float = 1e-5, splits: int = 1, parts: int = 2, **options: Any) -> None:
    actual, expected, mine = case.run(splits, parts, **options), case.expected(**options), decodes(case)
    assert actual[~mine].isnan().all(), "a chunk's rows are the prefill's"
    torch.testing.assert_close(actual[mine], expected[mine], rtol=tolerance, atol=tolerance)


TWO = [(9, [1, 5, 40, 17, 1]), (17, [3, 80])]
OTHERS = [(1, 1), (7, 50), (1, 130)]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("block_size", [8, 32])
def test_two_groups_and_others(
    triton_device: str, dtype: torch.dtype, tolerance: float, group: int, block_size: int
) -> None:
    if triton_device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    case = make(TWO, OTHERS, heads=2 * group, block_size=block_size, dtype=dtype, device=triton_device)
    expect_equal(case, tolerance)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("size", [16, 64, 80, 128, 256])
def test_head_sizes(triton_device: str, size: int) -> None:
    expect_equal(make(TWO, OTHERS, size=size, device=triton_device))


def test_all_but_the_own_token_is_shared(triton_device: str) -> None:
    expect_equal(make([(8, [1] * 7)], device=triton_device))


def test_more_members_than_a_tile_has(triton_device: str) -> None:
    """A tile of 64 rows has the queries of 4 sequences."""
    assert tile_members(32, 16, 4) == 4
    expect_equal(make([(9, [3] * 9), (8, [7] * 5)], OTHERS, heads=16, kv_heads=1, device=triton_device), parts=3)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("splits", [1, 2, 16])
@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("kinds", [["sinks"], ["slopes"]], ids=str)
def test_divided_among_programs(triton_device: str, splits: int, parts: int, kinds: list[str]) -> None:
    """Also into more parts than there is work: the others write nothing, and nothing of theirs is read."""
    case = make([(35, [1, 129]), (8, [16, 300])], OTHERS, device=triton_device)
    made = {"slopes": 2.0 ** -torch.arange(1.0, 5.0), "sinks": torch.linspace(-4, 30, 4)}
    options: dict[str, Any] = {kind: made[kind].to(triton_device) for kind in kinds}
    expect_equal(case, splits=splits, parts=parts, **options)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "options",
    [{"softcap": 2.0}, {"window": 1}, {"window": 150}, {"window": 200}, {"chunk": 150}, {"chunk": 160, "window": 30}],
    ids=str,
)
@pytest.mark.parametrize("splits", [1, 4])
def test_what_is_out_of_sight_is_not_shared(triton_device: str, options: dict[str, Any], splits: int) -> None:
    """Members whose first token is hidden read by themselves; the others still share."""
    case = make([(9, [1, 5, 40, 17, 57]), (8, [3, 30, 21, 22, 23])], OTHERS, device=triton_device)
    for batch in (case.batch, case.alone):
        batch.block_tables.copy_(case.alone.block_tables)
    expect_equal(case, splits=splits, **options)


def test_nothing_is_shared(triton_device: str) -> None:
    """As in a graph with sharing whose step shares nothing."""
    expect_equal(make([], OTHERS, device=triton_device))


@pytest.mark.long
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    groups=st.lists(
        st.tuples(st.integers(1, 20), st.lists(st.integers(1, 40), min_size=1, max_size=5)), max_size=MOST_GROUPS
    ),
    others=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), max_size=3),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 6),
    splits=st.sampled_from([1, 2, 8]),
    parts=st.integers(1, 4),
    window=st.one_of(st.none(), st.integers(1, 300)),
    sinks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_groups(
    triton_device: str,
    groups: list[Group],
    others: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    splits: int,
    parts: int,
    window: int | None,
    sinks: bool,
    seed: int,
) -> None:
    lengths = [(rows, rows + before) for rows, before in others] or [(1, 1)]
    case = make(
        groups,
        lengths,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        size=16,
        block_size=8,
        device=triton_device,
        seed=seed,
    )
    options: dict[str, Any] = {"window": window}
    if window is not None:
        case.batch.block_tables.copy_(case.alone.block_tables)
    if sinks:
        options["sinks"] = torch.linspace(-4, 3, kv_heads * group).to(triton_device)
    expect_equal(case, splits=splits, parts=parts, **options)


def test_the_op_takes_chunks_beside_them(triton_device: str) -> None:
    case = make(TWO, OTHERS, device=triton_device)
    actual = paged_attention(case.query, case.keys, case.values, case.batch, scale=0.2, implementation="triton")
    torch.testing.assert_close(actual, case.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("members", torch.zeros(3, dtype=torch.int32), r"members is \[3\], expected \[10\]"),
        ("shared", torch.zeros(10), "shared is torch.float32 on cpu; expected contiguous int32"),
        ("starts", torch.zeros(1, dtype=torch.int32), r"starts is \[1\], expected \[2\]"),
        ("starts", torch.zeros(2, 2, dtype=torch.int32), r"starts is \[2, 2\], expected \[4\]"),
    ],
)
def test_refusals(name: str, tensor: Tensor, message: str) -> None:
    case = make(TWO, OTHERS)
    assert case.batch.prefixes is not None
    batch = replace(case.batch, prefixes=replace(case.batch.prefixes, **{name: tensor}))
    with pytest.raises(ValueError, match=message):
        paged_attention(case.query, case.keys, case.values, batch, scale=0.2)


@pytest.mark.parametrize(
    ("sequences", "members", "kv_heads", "processors", "splits"),
    [(64, 16, 8, 132, 4), (16, 16, 8, 132, 16), (256, 16, 8, 132, 1), (2, 64, 1, 132, 64), (1000, 4, 8, 132, 1)],
)
def test_a_wave_of_programs(sequences: int, members: int, kv_heads: int, processors: int, splits: int) -> None:
    assert prefix_splits(sequences, members, kv_heads, processors) == splits
