"""Each rank has one stage and one shard; the heads of all ranks are those of the whole model, divided evenly."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.models.ops.weight import Range
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape
from plimsoll_runtime.parallel.layout import HeadRanges, Layout, heads_of, share

layouts = st.builds(Layout, st.integers(1, 6), st.integers(1, 6))


@given(layouts)
def test_each_rank_is_one_shard_of_one_stage(layout: Layout) -> None:
    ranks = range(layout.size)
    found = {(layout.stage(rank), layout.shard(rank)) for rank in ranks}
    assert found == {(stage, shard) for stage in range(layout.stages) for shard in range(layout.tensor)}
    for rank in ranks:
        together = [other for other in ranks if layout.stage(other) == layout.stage(rank)]
        assert list(layout.together(rank)) == together
        assert [layout.shard(other) for other in together] == list(range(layout.tensor))


@given(layouts)
def test_values_pass_through_all_stages_from_shard_to_shard(layout: Layout) -> None:
    for shard in range(layout.tensor):
        [rank] = [each for each in range(layout.size) if layout.before(each) is None and layout.shard(each) == shard]
        passed = [rank]
        while (after := layout.after(passed[-1])) is not None:
            assert layout.before(after) == passed[-1]
            passed.append(after)
        assert [layout.stage(each) for each in passed] == list(range(layout.stages))
        assert {layout.shard(each) for each in passed} == {shard}
    # Rank 0 samples, so it is in the last stage; a stage has neighbouring ranks, so that they can share a machine.
    assert layout.stage(0) == layout.stages - 1
    assert layout.after(0) is None


@dataclass(frozen=True)
class Group:
    """An attention shape and a number of ranks that it can be divided among."""

    shape: AttentionShape
    ranks: int

    @property
    def queries_per_key(self) -> int:
        return self.shape.heads // self.shape.kv_heads

    @property
    def all(self) -> list[HeadRanges]:
        """The heads of each rank."""
        return [heads_of(self.shape, self.ranks, rank) for rank in range(self.ranks)]


@st.composite
def groups(draw: st.DrawFn) -> Group:
    keys, queries = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    alibi = Alibi(tuple(float(head) for head in range(keys * queries))) if draw(st.booleans()) else None
    shape = AttentionShape(keys * queries, keys, 8, 1.0, alibi=alibi)
    return Group(shape, draw(st.integers(1, shape.heads)))


def size(heads: Range) -> int:
    return heads[1] - heads[0]


@given(st.integers(0, 200), st.integers(1, 40))
def test_shares_are_consecutive_and_even(total: int, ranks: int) -> None:
    shares = [share(total, ranks, rank) for rank in range(ranks)]
    assert (shares[0][0], shares[-1][1]) == (0, total)
    assert all(one[1] == next_one[0] for one, next_one in pairwise(shares))
    sizes = [size(each) for each in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(groups())
def test_each_query_head_is_on_one_rank_in_order(group: Group) -> None:
    heads = [head for each in group.all for head in range(*each.queries)]
    assert heads == list(range(group.shape.heads))
    assert all(size(each.queries) > 0 for each in group.all)


@given(groups())
def test_key_heads_are_those_of_the_queries(group: Group) -> None:
    for each in group.all:
        wanted = {query // group.queries_per_key for query in range(*each.queries)}
        assert wanted == set(range(*each.keys))


@given(groups())
def test_each_rank_is_a_valid_attention_shape(group: Group) -> None:
    """All kernels map query head i of a rank to key head i // (query heads / key heads)."""
    for each in group.all:
        part = each.of(group.shape)
        assert part.heads % part.kv_heads == 0
        for query in range(part.heads):
            key = each.keys[0] + query // (part.heads // part.kv_heads)
            assert key == (each.queries[0] + query) // group.queries_per_key


@given(groups())
def test_few_ranks_have_whole_key_heads(group: Group) -> None:
    if group.ranks > group.shape.kv_heads:
        return
    counts = [size(each.keys) for each in group.all]
    assert sum(counts) == group.shape.kv_heads
    assert max(counts) - min(counts) <= 1
    assert [size(each.queries) for each in group.all] == [count * group.queries_per_key for count in counts]


@given(groups())
def test_many_ranks_share_the_queries_of_a_key_head(group: Group) -> None:
    if group.ranks <= group.shape.kv_heads:
        return
    by_key: dict[int, list[int]] = {}
    for each in group.all:
        assert size(each.keys) == 1
        by_key.setdefault(each.keys[0], []).append(size(each.queries))
    assert list(by_key) == list(range(group.shape.kv_heads))
    copies = [len(sizes) for sizes in by_key.values()]
    assert max(copies) - min(copies) <= 1
    for sizes in by_key.values():
        assert sum(sizes) == group.queries_per_key
        assert max(sizes) - min(sizes) <= 1


@given(groups())
def test_slopes_go_with_their_heads(group: Group) -> None:
    parts = [each.of(group.shape) for each in group.all]
    if group.shape.alibi is None:
        assert all(part.alibi is None for part in parts)
    else:
        slopes = [part.alibi.slopes for part in parts if part.alibi is not None]
        assert tuple(slope for each in slopes for slope in each) == group.shape.alibi.slopes
        assert [len(each) for each in slopes] == [part.heads for part in parts]


@given(groups())
def test_a_shape_of_queries_alone_stays_one(group: Group) -> None:
    for each in group.all:
        part = each.of(group.shape.queries_alone)
        assert (part.heads, part.kv_heads) == (size(each.queries), 0)


@pytest.mark.parametrize(
    ("heads", "keys", "ranks", "queries"),
    [
        (14, 2, 3, [4, 3, 7]),  # Qwen2.5 0.5B
        (14, 2, 4, [4, 3, 4, 3]),
        (32, 8, 3, [12, 12, 8]),  # Llama 3 8B
        (4, 1, 3, [2, 1, 1]),  # Gemma 3 1B
        (6, 3, 2, [4, 2]),
    ],
)
def test_known_models(heads: int, keys: int, ranks: int, queries: list[int]) -> None:
    group = Group(AttentionShape(heads, keys, 64, 1.0), ranks)
    assert [size(each.queries) for each in group.all] == queries


def test_a_rank_that_the_group_does_not_have() -> None:
    with pytest.raises(ValueError, match="rank 4 is not one of 4 ranks"):
        heads_of(AttentionShape(8, 2, 64, 1.0), 4, 4)
