"""Shared prefixes of decodes in device buffers that CUDA graphs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_runtime.execution.attention.shared_prefix.grouping import MOST_GROUPS
from plimsoll_runtime.execution.attention.shared_prefix.planner import (
    PrefixPlan,
    PrefixPlanner,
    SharingBackend,
    TableRows,
)
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.inputs.upload_buffer import UploadBuffer, UploadSlice


class SharedBuffers:
    """The integers of each cache group's PrefixTables, in device memory at fixed addresses.

    A step only sends them if its plan or capture size differs from those of the last step that sent them.
    """

    def __init__(self, planners: Sequence[PrefixPlanner | None], max_sequences: int, device: torch.device) -> None:
        self._planners = planners
        size = 2 * max_sequences + MOST_GROUPS + 1
        self._numbers = [torch.zeros(size, dtype=torch.int32, device=device) for _ in planners]
        self._sent_plans: list[tuple[PrefixPlan, int] | None] = [None] * len(planners)

    @classmethod
    def of(cls, backend: object, max_sequences: int, device: torch.device) -> SharedBuffers | None:
        """Return buffers; None if the backend lacks shared-prefix attention or no cache group may share."""
        if not isinstance(backend, SharingBackend) or not backend.prefixes.any:
            return None
        return cls(backend.prefixes.planners, max_sequences, device)

    def tables(self, group: int, bucket: int) -> PrefixTables | None:
        """Return the tables of a cache group for the capture size `bucket`; None if its layers never share."""
        return None if self._planners[group] is None else PrefixTables.of(self._of(group, bucket), bucket)

    def add_to(self, buffer: UploadBuffer, rows: StepRows, bucket: int) -> Callable[[], None] | None:
        """Add the shared prefixes of a step's decodes to its upload buffer; return None if they share none.

        The returned function copies them to the tables. Call it after the buffer was sent, and before a graph reads the
        tables.
        """
        plans = [
            None if planner is None else planner.plan(_table_rows(rows, group))
            for group, planner in enumerate(self._planners)
        ]
        if not any(plan is not None and plan.groups for plan in plans):
            return None
        new: list[tuple[int, PrefixPlan, UploadSlice]] = []
        for group, plan in enumerate(plans):
            if plan is not None and not self._has(group, plan, bucket):
                new.append((group, plan, buffer.add(plan.numbers(bucket))))

        def receive() -> None:
            for group, plan, numbers in new:
                self._of(group, bucket).copy_(numbers.on_device)
                self._sent_plans[group] = plan, bucket

        return receive

    def _has(self, group: int, plan: PrefixPlan, bucket: int) -> bool:
        last = self._sent_plans[group]
        return last is not None and last[0] is plan and last[1] == bucket

    def _of(self, group: int, bucket: int) -> Tensor:
        return self._numbers[group][: 2 * bucket + MOST_GROUPS + 1]


def _table_rows(rows: StepRows, group: int) -> TableRows:
    own = rows.groups[group]
    return TableRows(rows.lengths, own.contexts, own.begins, np.frombuffer(own.kept.blocks, np.int32))
