"""Blocks freed by windows are available to other sequences."""

from __future__ import annotations

import pytest

from kv_windows.run import CACHE_SEQUENCES, CONTEXT, held, shapes_of
from plimsoll_runtime.execution.kv.layout import kv_layout
from plimsoll_runtime.models.spec.attention import AttentionShape


@pytest.mark.parametrize(("model", "ratio"), [("Gemma 3 270M", 2.5), ("Gemma 3 4B", 2.5)])
def test_the_same_cache_holds_more_sequences(model: str, ratio: float) -> None:
    shapes = shapes_of(model)
    plain = kv_layout([AttentionShape(s.heads, s.kv_heads, s.head_dim, s.scale) for s in shapes], 8192, 16, 2)
    cache = CACHE_SEQUENCES * CONTEXT // 16 * plain.block_bytes
    before = held(plain, cache)
    assert CACHE_SEQUENCES - 2 < before < CACHE_SEQUENCES
    assert held(kv_layout(shapes, 8192, 16, 2), cache) >= ratio * before
