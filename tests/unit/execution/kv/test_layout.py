"""Layers of one rule share memory in groups of equally many, and little of it is unused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.kv.cache_groups import Chunked, Full, SlidingWindow
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.layout import UNUSED, KvLayout, kv_layout
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape


def shape(window: int | None = None, kv_heads: int = 1, chunk: int | None = None) -> AttentionShape:
    return AttentionShape(4, kv_heads, 8, 1.0, window=window, chunk=chunk)


def layout(windows: list[int | None], longest: int = 32768) -> KvLayout:
    return kv_layout([shape(window) for window in windows], longest, 16, 2)


def every_sixth(layers: int, window: int = 512) -> list[int | None]:
    return [None if layer % 6 == 5 else window for layer in range(layers)]


@pytest.mark.parametrize(
    ("windows", "together", "groups"),
    [
        ([None] * 32, 32, 1),
        ([4096] * 32, 32, 1),
        ([128, None] * 12, 12, 2),
        (every_sixth(18), 3, 6),
        (every_sixth(26), 2, 13),
        (every_sixth(34), 5, 7),
        (every_sixth(48), 8, 6),
        (every_sixth(62), 5, 13),
        ([40_000, None] * 3, 6, 1),
    ],
    ids=["full", "window", "one-to-one", "270m", "1b", "4b", "12b", "27b", "never-slides"],
)
def test_layers_of_a_group(windows: list[int | None], together: int, groups: int) -> None:
    found = layout(windows)
    assert (max(map(len, found.groups)), len(found.groups)) == (together, groups)
    assert found.block_bytes == together * 16 * 2 * 8 * 2


@given(st.lists(st.sampled_from([None, 16, 64]), min_size=1, max_size=70))
def test_every_layer_is_with_its_like_and_little_is_unused(windows: list[int | None]) -> None:
    found = layout(windows)
    assert sorted(layer for group in found.groups for layer in group) == list(range(len(windows)))
    for group, rule in zip(found.groups, found.rules, strict=True):
        expected = [Full() if windows[layer] is None else SlidingWindow(windows[layer] or 0) for layer in group]
        assert expected == [rule] * len(group)
    full = [isinstance(rule, Full) for rule in found.rules]
    assert full == sorted(full, reverse=True)
    whole = sum(2 * 8 * 2 * 16 for _ in windows)
    assert len(found.groups) * found.block_bytes * (1 - UNUSED) <= whole * (1 + 1e-9)


def test_what_a_sequence_takes() -> None:
    found = layout(every_sixth(18))
    each = 3 * 16 * 2 * 8 * 2
    assert found.block_bytes == each
    # 511 tokens before four blocks that are computed at once, in five groups; all of them in the sixth
    assert found.sequence_bytes(4096) == (256 + 5 * 37) * each


def mixed(layers: int, own: tuple[int, int], other: tuple[int, int], every: int) -> list[AttentionShape]:
    """Return Gemma 4's layers: windows, and every `every`-th layer with larger heads and full context."""
    window, full = AttentionShape(8, *own, 1.0, window=1024), AttentionShape(8, *other, 1.0)
    return [full if layer % every == every - 1 else window for layer in range(layers)]


@pytest.mark.parametrize(
    ("shapes", "together", "groups", "elements"),
    [
        (mixed(15, (1, 256), (1, 512), 5), (3, 6), 3, 3 * 1024),
        (mixed(30, (8, 256), (2, 512), 6), (5, 3), 10, 3 * 4096),
        (mixed(60, (16, 256), (4, 512), 6), (10, 5), 11, 10 * 4096),
        (mixed(4, (1, 96), (1, 128), 2), (2, 2), 2, 512),
    ],
    ids=["e2b", "26b", "31b", "odd"],
)
def test_layers_whose_heads_differ(
    shapes: list[AttentionShape], together: tuple[int, int], groups: int, elements: int
) -> None:
    """A group has as many layers of each kind as have the bytes of a block."""
    found = kv_layout(shapes, 32768, 16, 2)
    by_rule = {
        rule: max(len(g) for g, r in zip(found.groups, found.rules, strict=True) if r == rule) for rule in found.rules
    }
    assert by_rule == {Full(): together[0], SlidingWindow(1024): together[1]}
    assert (len(found.groups), found.block_bytes) == (groups, 16 * elements * 2)
    cache = KvCache(shapes, 2, 16, torch.bfloat16, torch.device("cpu"), groups=found.groups)
    assert cache.block_bytes == found.block_bytes


@given(
    st.lists(st.sampled_from([None, 16, 64]), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([8, 16, 24])), min_size=3, max_size=3),
)
def test_a_block_holds_what_each_group_has(windows: list[int | None], heads: list[tuple[int, int]]) -> None:
    kinds = dict(zip([None, 16, 64], heads, strict=True))
    shapes = [AttentionShape(12, *kinds[window], 1.0, window=window) for window in windows]
    found = kv_layout(shapes, 4096, 16, 2)
    assert sorted(layer for group in found.groups for layer in group) == list(range(len(shapes)))
    cache = KvCache(shapes, 2, 16, torch.bfloat16, torch.device("cpu"), groups=found.groups)
    assert cache.block_bytes == found.block_bytes
    for group, rule in zip(found.groups, found.rules, strict=True):
        assert 16 * 2 * sum(shapes[layer].cached_width for layer in group) <= found.block_bytes
        window = rule.behind + 1 if isinstance(rule, SlidingWindow) else None
        assert {shapes[layer].window for layer in group} == {window}


def test_layers_that_cannot_share_memory_are_one_group() -> None:
    """The group has the rule of the layers that keep most."""
    two = [shape(16), shape(None, kv_heads=2)]
    assert kv_layout(two, 4096, 16, 2).groups == ((1,), (0,))
    uneven = kv_layout([shape(16), shape(16, kv_heads=2), shape(64)], 4096, 16, 2)
    assert (uneven.groups, uneven.rules) == (((0, 1, 2),), (SlidingWindow(64),))
    alike = kv_layout([shape(16), shape(16, kv_heads=2)], 4096, 16, 2)
    assert (alike.groups, alike.rules) == (((0, 1),), (SlidingWindow(16),))


def test_chunks_are_given_back_whole() -> None:
    assert kv_layout([shape(chunk=64)], 4096, 16, 2).rules == (Chunked(64),)
    assert kv_layout([shape(chunk=72)], 4096, 16, 2).rules == (Full(),)
    assert kv_layout([shape(window=16, chunk=64)], 4096, 16, 2).rules == (Chunked(64),)
    assert kv_layout([shape(window=16, chunk=8192)], 4096, 16, 2).rules == (SlidingWindow(16),)


def test_slopes_by_position_need_the_first_tokens() -> None:
    slopes = Alibi((0.5, 0.25, 0.125, 0.1), coarse=True)
    coarse = AttentionShape(4, 1, 8, 1.0, window=16, alibi=slopes)
    assert kv_layout([coarse], 4096, 16, 2).rules == (Full(),)


KINDS = {"full": shape(), "16": shape(16), "64": shape(64), "chunk": shape(chunk=32)}


@st.composite
def divided_shapes(draw: st.DrawFn) -> list[list[AttentionShape]]:
    """Return the shapes of one to four stages, each with at least one layer."""
    stages = draw(st.lists(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=20), min_size=1, max_size=4))
    return [[KINDS[kind] for kind in stage] for stage in stages]


@given(divided_shapes(), st.sampled_from([1, 2]))
def test_stages_have_the_same_groups(stages: list[list[AttentionShape]], kv_heads: int) -> None:
    """Each layer is in one group of its rule; other ranks of a stage may have other numbers of key heads."""
    parts = [[replace(each, kv_heads=kv_heads) for each in stage] for stage in stages]
    whole = kv_layout([each for stage in parts for each in stage], 32768, 16, 2)
    for number, own in enumerate(parts):
        found = kv_layout(own, 32768, 16, 2, stages=parts, stage=number)
        assert found.rules == whole.rules
        assert sorted(layer for group in found.groups for layer in group) == list(range(len(own)))
        for group, rule in zip(found.groups, found.rules, strict=True):
            alone = [kv_layout([own[layer]], 32768, 16, 2).rules[0] for layer in group]
            assert alone == [rule] * len(group)
        widest = max(sum(own[layer].cached_width for layer in group) for group in found.groups)
        assert found.block_bytes == widest * 16 * 2
        # The layers of a rule are divided evenly among its groups.
        for rule in set(found.rules):
            sizes = [len(group) for group, other in zip(found.groups, found.rules, strict=True) if other == rule]
            assert max(sizes) - min(sizes) <= 1


def test_a_stage_without_a_layer_of_a_rule_has_its_group() -> None:
    stages = [[shape(64)] * 3, [shape(64), shape()]]
    first, second = (kv_layout(stages[n], 32768, 16, 2, stages=stages, stage=n) for n in range(2))
    assert first.rules == second.rules
    assert isinstance(first.rules[0], Full)
    assert first.groups[0] == ()
    assert second.groups[0] == (1,)
    assert first.sequence_bytes(4096) > 0


def test_one_stage_is_the_whole() -> None:
    shapes = [shape(window) for window in every_sixth(26)]
    assert kv_layout(shapes, 32768, 16, 2, stages=[shapes]) == kv_layout(shapes, 32768, 16, 2)


def test_stages_of_layers_that_differ_in_size_have_one_group() -> None:
    """Two widths of one rule in different stages: no stage may divide its layers alone."""
    stages = [[shape(), shape(64)], [shape(kv_heads=2), shape(64)]]
    found = [kv_layout(stages[n], 32768, 16, 2, stages=stages, stage=n) for n in range(2)]
    assert [each.groups for each in found] == [((0, 1),)] * 2
    assert found[0].rules == found[1].rules == (Full(),)
