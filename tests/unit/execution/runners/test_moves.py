"""The block copies of a step before it computes: in the plan's order, and without waiting for the device."""

from __future__ import annotations

import torch
from kernel_support.late_streams import LateStreams

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.runners.base import copy_blocks
from plimsoll_runtime.models.spec.attention import AttentionShape


def numbered() -> KvCache:
    """Return a cache in which each block has its number as contents."""
    cache = KvCache([AttentionShape(1, 1, 2, 1.0)], 10, 1, torch.float32, torch.device("cpu"))
    cache.blocks(0, 10).copy_(torch.arange(10.0).unsqueeze(1).expand(10, 4))
    return cache


def held(cache: KvCache) -> list[int]:
    return [int(block[0]) for block in cache.blocks(0, 10)]


def test_what_is_spilled_may_come_back_and_be_copied_in_one_step() -> None:
    cache = numbered()
    plan = StepPlan((), spills=[(1, 1), (2, 2)], restores=[(2, 1), (1, 2)], block_copies=[(1, 7)])
    copy_blocks(plan, cache, HostBlocks(cache, 3))
    assert held(cache) == [0, 2, 1, 3, 4, 5, 6, 2, 8, 9]


def test_blocks_are_spilled_before_the_cache_shrinks() -> None:
    cache = numbered()
    host = HostBlocks(cache, 3)
    copy_blocks(StepPlan((), spills=[(1, 1), (8, 2)], moves=[(9, 1)], num_blocks=8), cache, host)
    assert [torch.frombuffer(host.row(frame), dtype=torch.float32)[0] for frame in (1, 2)] == [1, 8]
    assert held(cache)[:8] == [0, 9, 2, 3, 4, 5, 6, 7]


def test_a_device_is_told_and_nobody_waits_for_it() -> None:
    """A step without spills and restores only marks its start."""
    cache, streams = numbered(), LateStreams()
    host = HostBlocks(cache, 3, streams=streams)
    for plan in (StepPlan((), spills=[(5, 2)], restores=[(2, 6)]), StepPlan((), restores=[(2, 7)]), StepPlan(())):
        copy_blocks(plan, cache, host)
    assert (len(streams.compute), len(streams.copies)) == (3 + 2, 2 * 2 + 3)
    assert host.copies is not None
    assert host.copies.steps_over == 0
    assert held(cache) == list(range(10))
    streams.go_on_to_the_end()
    assert host.copies.steps_over == 2
    assert held(cache) == [0, 1, 2, 3, 4, 5, 5, 5, 8, 9]
    host.copies.check_integrity()
