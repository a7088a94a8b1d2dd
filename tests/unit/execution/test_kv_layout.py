"""Layers of one rule share memory in groups of equally many, and little of it is left unused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.groups.chunk import Chunked
from plimsoll_runtime.engine.groups.full import Full
from plimsoll_runtime.engine.groups.window import SlidingWindow
from plimsoll_runtime.execution.kv_layout import UNUSED, KvLayout, kv_layout
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


def test_layers_whose_heads_differ_are_one_group() -> None:
    mixed = kv_layout([shape(16), shape(None, kv_heads=2)], 4096, 16, 2)
    assert (mixed.groups, mixed.rules, mixed.block_bytes) == (((0, 1),), (Full(),), 16 * 2 * 3 * 8 * 2)
    windows = kv_layout([shape(16), shape(64, kv_heads=2)], 4096, 16, 2)
    assert windows.rules == (SlidingWindow(64),)
    alike = kv_layout([shape(16), shape(16, kv_heads=2)], 4096, 16, 2)
    assert alike.rules == (SlidingWindow(16),)


def test_chunks_are_given_back_whole() -> None:
    assert kv_layout([shape(chunk=64)], 4096, 16, 2).rules == (Chunked(64),)
    assert kv_layout([shape(chunk=72)], 4096, 16, 2).rules == (Full(),)
    assert kv_layout([shape(window=16, chunk=64)], 4096, 16, 2).rules == (Chunked(64),)
    assert kv_layout([shape(window=16, chunk=8192)], 4096, 16, 2).rules == (SlidingWindow(16),)


def test_slopes_by_position_need_the_first_tokens() -> None:
    slopes = Alibi((0.5, 0.25, 0.125, 0.1), coarse=True)
    coarse = AttentionShape(4, 1, 8, 1.0, window=16, alibi=slopes)
    assert kv_layout([coarse], 4096, 16, 2).rules == (Full(),)
