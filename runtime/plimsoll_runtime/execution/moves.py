"""What a step moves before it computes: blocks to and from host memory, within the cache, and the cache's own end."""

from __future__ import annotations

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.host import HostBlocks


class BlockMoves:
    """Of one cache, and of the host memory beside it if there is some."""

    def __init__(self, cache: KvCache, host: HostBlocks | None = None) -> None:
        self._cache = cache
        self._host = host
        self._copies = None if host is None else host.copies

    def begin(self, plan: StepPlan) -> None:
        """Move what the plan says, in the order that `StepPlan` gives.

        A GPU is only told to. What it copies to and from host memory is over when `HostBlocks.copies` says so.
        """
        if self._copies is not None:
            self._copies.begin_step()
        if self._host is not None and (plan.spills or plan.restores):
            self._host.move(plan.spills, plan.restores, plan.idle_steps)
        if plan.num_blocks is not None:
            self._cache.resize(plan.num_blocks, plan.moves)
        if plan.block_copies:
            self._cache.copy_blocks(plan.block_copies)
