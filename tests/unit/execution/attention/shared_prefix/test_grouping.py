"""The groups of decodes that share blocks are those that save most, of all possible groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.attention.shared_prefix.grouping import (
    LAUNCH_BYTES,
    MOST_GROUPS,
    SharedPrefix,
    Worth,
    fewest_blocks,
    saved,
    shared_prefixes,
)
from plimsoll_runtime.models.spec.attention import AttentionShape

LLAMA = AttentionShape(heads=32, kv_heads=8, head_dim=128, scale=0.1)
BLOCK = 128
"""Tokens of a block, so that one block is enough to share."""


def found(tables: Sequence[Sequence[int]], worth: Worth, block_size: int = BLOCK) -> tuple[SharedPrefix, ...]:
    arrays = [np.array(table, dtype=np.int32) for table in tables]
    return shared_prefixes(arrays, range(len(arrays)), block_size, worth)


def partitions(numbers: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all partitions of numbers."""
    if not numbers:
        yield []
        return
    for rest in partitions(numbers[1:]):
        yield [[numbers[0]], *rest]
        for place, group in enumerate(rest):
            yield [*rest[:place], [numbers[0], *group], *rest[place + 1 :]]


def alike(tables: Sequence[Sequence[int]]) -> int:
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*tables, strict=False))))


def most_saved(tables: Sequence[Sequence[int]], worth: Worth) -> float:
    """Return the most that any groups and lengths save."""
    return max(
        sum(
            max(
                (
                    saved(SharedPrefix(tuple(group), n), BLOCK, worth)
                    for n in range(alike([tables[i] for i in group]) + 1)
                ),
                default=0.0,
            )
            for group in groups
            if len(group) > 1
        )
        for groups in partitions(range(len(tables)))
    )


@given(
    tables=st.lists(st.lists(st.integers(1, 2), max_size=5), min_size=1, max_size=6),
    partial=st.integers(0, 150).map(lambda share: share * 2**20),
    members=st.sampled_from([1, 2, 4, 16]),
)
def test_nothing_saves_more(tables: list[list[int]], partial: int, members: int) -> None:
    worth = Worth(token=2.0**20, partial=partial, members=members)
    groups = found(tables, worth)
    for group in groups:
        assert list(group.members) == sorted(set(group.members))
        assert len(group.members) > 1
        assert alike([tables[i] for i in group.members]) >= group.blocks
    listed = [member for group in groups for member in group.members]
    assert len(listed) == len(set(listed)), "no sequence is in two groups"
    best = most_saved(tables, worth)
    assert sum(saved(group, BLOCK, worth) for group in groups) == pytest.approx(best if best > LAUNCH_BYTES else 0.0)


def test_tables_of_requests() -> None:
    """Two system prompts, a conversation that two requests continue, and an unrelated request."""
    worth = Worth.of([LLAMA], 2)
    assert worth is not None
    system, other, talk = list(range(1, 65)), list(range(100, 164)), list(range(200, 456))
    tables = [[*system, 900], [*other, 901], [*system, *talk, 902], [903] * 9, [*system, 904], [*other, 905]]
    tables += [[*system, *talk, 906], *([*other, number] for number in range(910, 930))]
    expected = SharedPrefix((0, 4), 64), SharedPrefix((1, 5, *range(7, 27)), 64), SharedPrefix((2, 6), 320)
    assert found(tables, worth, 16) == expected


@pytest.mark.parametrize(("sequences", "tokens"), [(2, 5600), (3, 2560), (4, 1696), (16, 336), (64, 128)])
def test_from_where_on_it_pays(sequences: int, tokens: int) -> None:
    """For a layer of Llama 3 8B: about 16 MiB of keys and values that are not read again."""
    worth = Worth.of([LLAMA], 2)
    assert worth is not None

    def shares(length: int) -> bool:
        return bool(found([[*range(1, length // 16 + 1), 10_000 + i] for i in range(sequences)], worth, 16))

    assert shares(tokens)
    assert not shares(tokens - max(16, tokens // 10) // 16 * 16)


def test_as_many_groups_as_fit_a_launch() -> None:
    worth = Worth(token=2.0**20, partial=0.0, members=64)
    tables = [[number] * (1 + number) for number in range(MOST_GROUPS + 3) for _ in range(2)]
    assert [group.blocks for group in found(tables, worth)] == list(range(4, MOST_GROUPS + 4))


@pytest.mark.parametrize(("block_size", "blocks"), [(8, 16), (16, 8), (128, 1), (256, 1)])
def test_the_shortest_prefix(block_size: int, blocks: int) -> None:
    assert fewest_blocks(block_size) == blocks


def test_layers_that_never_share() -> None:
    latent = AttentionShape(heads=16, kv_heads=1, head_dim=576, scale=0.1, latent=True)
    narrow = AttentionShape(heads=32, kv_heads=8, head_dim=128, scale=0.1, window=128)
    chunked = AttentionShape(heads=32, kv_heads=8, head_dim=128, scale=0.1, chunk=8192)
    assert Worth.of([LLAMA, latent], 2) is None
    assert Worth.of([LLAMA, narrow], 2) is None
    assert Worth.of([], 2) is None
    assert Worth.of([LLAMA, chunked], 2) == Worth(token=4096.0, partial=33280.0, members=16, seen=8192)
