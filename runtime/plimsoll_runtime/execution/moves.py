"""What a step moves before it computes: blocks to and from host memory, within the cache, and the cache's own end."""

from __future__ import annotations

from plimsoll_runtime.engine.plan import StepPlan
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.host import HostBlocks


class BlockMoves:
    """Of one cache, and of the host memory beside it if there is some."""

    def __init__(self, cache: KvCache, host: HostBlocks | None = None) -> None:
        self._cache = cache
        self._host = host

    def begin(self, plan: StepPlan) -> None:
        """Move what the plan says, in the order that `StepPlan` gives."""
        if self._host is not None and plan.spills:
            self._host.spill(plan.spills)
        if plan.num_blocks is not None:
            self._cache.resize(plan.num_blocks, plan.moves)
        if self._host is not None and plan.restores:
            self._host.restore(plan.restores)
        if plan.block_copies:
            self._cache.copy_blocks(plan.block_copies)

    def finish(self, plan: StepPlan) -> None:
        """A GPU has read the host memory that the plan restores from: a disk may write there again."""
        if self._host is not None and plan.restores:
            self._host.wait()
