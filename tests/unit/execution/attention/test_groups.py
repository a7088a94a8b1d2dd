"""Layers in several cache groups, which free the blocks outside their windows, equal dense attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from kernel_support.instructions import BUILDS, Build, forced

from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

Simulate = Callable[..., Any]

GROUPS = [[1], [0, 2], [3]]


def shape(heads: int, window: int | None = None) -> AttentionShape:
    return AttentionShape(heads, kv_heads=2, head_dim=16, scale=0.25, window=window)


SHAPES = [shape(4, 9), shape(4), shape(2, 9), shape(4, 20)]


MIXED = [
    shape(4, 9),
    AttentionShape(4, 1, 32, 0.2),
    AttentionShape(2, 1, 16, 0.25, 9),
    AttentionShape(2, 1, 32, 0.2, 20),
]
"""Groups with heads of different size and number, and different bytes."""


def past_the_windows(run: Any) -> None:
    """Run chunks and decodes over blocks that another group had before."""
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 30})
    run.step({c: 37, a: 1})
    for _ in range(4):
        run.step({a: 18, b: 1, c: 1})
    firsts = [[table.first for table in sequence.tables] for sequence in run.sequences]
    assert firsts == [[0, 4, 3], [0, 0, 0], [0, 3, 3]]


@pytest.mark.parametrize("shapes", [SHAPES, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("backend", [ReferenceBackend, SdpaBackend, GatheredBackend])
def test_stock_torch(simulation: Simulate, backend: type[AttentionBackend], shapes: list[AttentionShape]) -> None:
    past_the_windows(simulation(backend, shapes, torch.float32, 16, 30, groups=GROUPS))


@pytest.mark.long
@pytest.mark.parametrize("shapes", [SHAPES, MIXED], ids=["alike", "mixed"])
def test_triton(simulation: Simulate, triton_device: str, shapes: list[AttentionShape]) -> None:
    past_the_windows(simulation(TritonBackend, shapes, torch.float32, 16, 30, groups=GROUPS, device=triton_device))


@pytest.mark.parametrize("shapes", [SHAPES, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_our_cpu_kernels(simulation: Simulate, build: Build, shapes: list[AttentionShape]) -> None:
    with forced(build) as chosen:
        past_the_windows(simulation(CpuBackend, shapes, chosen.dtype, 16, 30, groups=GROUPS))


def test_groups_share_their_memory() -> None:
    cache = KvCache(SHAPES, 8, 16, torch.float32, torch.device("cpu"), groups=GROUPS)
    assert cache.group_of == (1, 0, 1, 2)
    first, second, third, fourth = ((keys.data_ptr(), keys.stride()) for keys in cache.keys)
    assert first == second == fourth != third
    assert cache.block_bytes == 2 * 2 * 16 * 2 * 16 * 4, "two layers at most, keys and values"
    apart = KvCache(SHAPES, 8, 16, torch.float32, torch.device("cpu"))
    assert apart.nbytes == 2 * cache.nbytes


@pytest.mark.parametrize("groups", [[[0, 1], [2]], [[0, 1], [1, 2, 3]]])
def test_each_layer_is_in_one_group(groups: Sequence[Sequence[int]]) -> None:
    with pytest.raises(ValueError, match="4 layers do not form the groups"):
        KvCache(SHAPES, 8, 16, torch.float32, torch.device("cpu"), groups=groups)


def test_layers_with_other_heads_share_their_memory_block_by_block() -> None:
    cache = KvCache(MIXED, 8, 16, torch.float32, torch.device("cpu"), groups=GROUPS)
    widths = [shape.cached_width for shape in MIXED]
    assert widths == [64, 64, 32, 64]
    assert cache.block_bytes == (widths[0] + widths[2]) * 16 * 4, "the largest group's"
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(1.0)
    for tensor in (cache.keys[0], cache.values[0], cache.keys[2], cache.values[2]):
        tensor[:, 3] = 2.0
    twice = [
        [int(block) for block in range(8) if (cache.keys[layer][:, block] == 2.0).any()] for layer in range(len(MIXED))
    ]
    assert twice == [[3]] * 4, "a block is one memory in every group, and no other's"
    assert not any((cache.keys[layer][:, 3] == 1.0).any() for layer in (0, 1, 2, 3))
