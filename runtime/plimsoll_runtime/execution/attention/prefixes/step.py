"""What the decodes of a step share, on the device: sent anew only when it is something else."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.prefixes.planner import PrefixPlan, PrefixPlanner, TableRows
from plimsoll_runtime.execution.attention.prefixes.worth import Worth
from plimsoll_runtime.execution.kv_cache import KvCache


@runtime_checkable
class SharingBackend(Protocol):
    """An attention backend that reads once what decodes share."""

    prefixes: StepPrefixes


class StepPrefixes:
    """Of steps over a cache. `planners`: one for each group of the cache; None where its layers never share."""

    def __init__(self, cache: KvCache) -> None:
        worths = [Worth.of([cache.shapes[layer] for layer in group], cache.dtype.itemsize) for group in cache.groups]
        self.planners = tuple(None if worth is None else PrefixPlanner(worth, cache.block_size) for worth in worths)
        self._device = cache.device
        self._sent: list[tuple[PrefixPlan, PrefixTables] | None] = [None] * len(worths)

    @property
    def any(self) -> bool:
        """Whether decodes may share anything."""
        return any(planner is not None for planner in self.planners)

    def of(self, batch: AttentionBatch) -> list[PrefixTables | None]:
        """What is shared in each group of the cache; None where nothing is."""
        return [self._of(number, group) for number, group in enumerate(batch.groups)]

    def _of(self, number: int, group: AttentionBatch) -> PrefixTables | None:
        planner, last = self.planners[number], self._sent[number]
        if planner is None or len(group.query_lens) < 2:
            return None
        plan = planner.plan(_rows(group))
        if not plan.groups:
            return None
        if last is None or last[0] is not plan:
            last = self._sent[number] = (plan, plan.tables(self._device))
        return last[1]


def _rows(group: AttentionBatch) -> TableRows:
    parts = (group.query_lens, group.context_lens, group.block_tables.begins)
    query_lens, context_lens, begins = (np.array(part, dtype=np.int64) for part in parts)
    return TableRows(query_lens, context_lens, begins, np.frombuffer(group.block_tables.blocks, np.int32))
