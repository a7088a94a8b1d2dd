"""The CPU backend equals dense attention for any batch, cache and shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.models.spec.attention import AttentionShape

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
Simulate = Callable[..., Any]


def shape(heads: int, kv_heads: int, head_dim: int, **more: Any) -> AttentionShape:
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **more)


@pytest.mark.matrix(9)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_mixed_batches_over_several_steps(
    simulation: Simulate, dtype: torch.dtype, block_size: int, group: int
) -> None:
    shapes = [shape(8, 8 // group, 64), shape(8, 8 // group, 64, window=24)]
    run = simulation(GatheredBackend, shapes, dtype, block_size, 200)
    a, b, c, d = (run.add() for _ in range(4))
    run.step({a: 40, b: 3})
    run.step({b: 1, a: 1, c: 70})
    run.step({c: 33, a: 1, b: 1, d: 1})
    run.step({a: 1, b: 1, c: 1, d: 200})
    run.step({d: 1, c: 5, b: 1, a: 1})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_head_sizes_soft_cap_and_layers_that_differ(simulation: Simulate, dtype: torch.dtype, head_dim: int) -> None:
    shapes = [shape(4, 1, head_dim, softcap=5.0), shape(6, 3, 64, window=7, softcap=20.0), shape(4, 1, head_dim)]
    run = simulation(GatheredBackend, shapes, dtype, 16, 60)
    a, b = run.add(), run.add()
    run.step({a: 130, b: 17})
    run.step({a: 1, b: 1})


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.dictionaries(st.integers(0, 7), st.one_of(st.just(1), st.integers(1, 300)), min_size=1), max_size=4),
    st.sampled_from([None, 1, 9, 150]),
    st.sampled_from([4, 16, 32]),
)
def test_any_batch(simulation: Simulate, steps: list[dict[int, int]], window: int | None, block_size: int) -> None:
    run = simulation(GatheredBackend, [shape(2, 1, 32, window=window)], torch.float32, block_size, 2500)
    for _ in range(8):
        run.add()
    for rows in steps:
        run.step(rows)


def test_a_long_context_is_cut_by_heads_and_rows(simulation: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plan", "tiles"):
        monkeypatch.setattr(f"plimsoll_runtime.execution.attention.backends.gather.{module}.TILE_SCORES", 2000)
    run = simulation(GatheredBackend, [shape(8, 4, 32)], torch.float32, 16, 100)
    a, b = run.add(), run.add()
    run.step({a: 500, b: 90})
    run.step({a: 1, b: 40})
