"""Blocks on their way to host memory and back, in every layout."""

from __future__ import annotations

import pytest
import torch

from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.host import HostBlocks
from plimsoll_runtime.models.spec import AttentionShape

SHAPES = [AttentionShape(4, 2, 16, 1.0), AttentionShape(4, 1, 32, 1.0)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def filled(device: str, paired: bool, num_blocks: int = 40) -> KvCache:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    cache = KvCache(SHAPES, num_blocks, 8, torch.bfloat16, torch.device(device), paired=paired)
    torch.manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    return cache


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paired", [False, True])
def test_blocks_come_back_as_they_went_wherever_they_go(device: str, paired: bool) -> None:
    if paired and device != "cpu":
        pytest.skip("paired caches are for CPUs")
    cache = filled(device, paired)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    host = HostBlocks(cache, 36)
    sources = list(range(2, 38))
    host.spill([(block, slot) for slot, block in enumerate(sources, 1)])
    if device == "cuda":
        torch.cuda.synchronize()
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    targets = sources[::-1]
    host.restore([(slot, block) for slot, block in enumerate(targets, 1)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, targets], then[:, sources])
        assert now[:, [0, 1, 38, 39]].isnan().all(), "no other block is touched"


@pytest.mark.parametrize("paired", [False, True])
def test_a_slot_is_all_of_a_block_and_nothing_else(paired: bool) -> None:
    cache = filled("cpu", paired)
    host = HostBlocks(cache, 3)
    host.spill([(5, 2)])
    elements = torch.frombuffer(host.row(2), dtype=torch.bfloat16)
    assert elements.nbytes == cache.block_bytes == sum(2 * s.kv_heads * 8 * s.head_dim for s in SHAPES) * 2
    wanted = torch.cat([t[:, 5].flatten() for t in (*cache.keys, *cache.values)])
    assert torch.equal(elements.sort().values, wanted.sort().values)
    assert not any(host.row(1)), "the slot before"
    assert not any(host.row(3)), "the slot behind"
