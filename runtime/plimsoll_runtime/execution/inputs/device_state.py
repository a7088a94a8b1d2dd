"""The batch state of a GPU: sampled tokens stay on it for the next step, before the host has read them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_runtime.execution.inputs.batch_state import SlotTables
from plimsoll_runtime.execution.inputs.block_tables import DeviceBlockTables
from plimsoll_runtime.execution.inputs.upload_buffer import UploadBuffer


class DeviceState(SlotTables):
    """Block tables on host and device, the last sampled tokens of slots, and the upload buffer of the steps.

    The host may not have these tokens yet when the next step needs them.

    - `tables`: of each cache group, on the host and on the device.
    - `chosen`: int64 [num_slots + 2], the last sampled token of each slot. Two entries follow: a 0 at `nobody`, so that
      `chosen[nobody]` can be added to a token that the host has, and at `unwanted` the tokens sampled by padding.
    """

    tables: Sequence[DeviceBlockTables]

    def __init__(self, num_slots: int, groups: int, num_blocks: int, columns: int, device: torch.device) -> None:
        """For a cache of `num_blocks` blocks. No table has more than `columns` blocks."""
        super().__init__([DeviceBlockTables(num_slots, num_blocks, columns, device) for _ in range(groups)])
        self.device = device
        self.num_slots = num_slots
        self.nobody, self.unwanted = num_slots, num_slots + 1
        self.upload_buffer = UploadBuffer(device)
        self.chosen = torch.zeros(num_slots + 2, dtype=torch.int64, device=device)

    def mark_sent(self) -> None:
        """Record that the device has all changes of the tables."""
        for tables in self.tables:
            tables.mark_sent()

    def filled(self, known: Tensor, sources: Tensor) -> Tensor:
        """Return the tokens of rows, int64 [T]: those of `known` plus the last sampled tokens of the slots `sources`.

        One of the two applies to each row: with a known token the source is `nobody`, otherwise `known` is 0.
        """
        return self.chosen.index_select(0, sources).add_(known)

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Store the tokens that a step sampled for slots, both int64 [R] on the device; a negative one counts as 0."""
        self.chosen.index_copy_(0, slots, tokens.clamp(min=0))

    def check_integrity(self) -> None:
        """Raise AssertionError if the device's tables differ from the host's, or the entry `nobody` is not 0."""
        super().check_integrity()
        assert int(self.chosen[self.nobody]) == 0, "the entry for known tokens is not 0"


def columns_of(max_model_len: int, block_size: int) -> int:
    """Return the columns of a block table's row: the most blocks of a sequence, freed ones included, and one more."""
    return -(-max_model_len // block_size) + 1
