"""The batch state of a device that runs ahead of the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_runtime.execution.inputs.batch_state import SlotTables
from plimsoll_runtime.execution.inputs.block_tables import DeviceBlockTables
from plimsoll_runtime.execution.inputs.upload_buffer import UploadBuffer


class DeviceState(SlotTables):
    """Block tables on host and device, the tokens that slots sampled last, and the upload buffer of the steps.

    The host may not have these tokens yet when the next step needs them.

    - `tables`: of each cache group, on the host and on the device.
    - `chosen`: int64 [num_slots + 2]. Behind the slots is a 0, at `nobody`, so that a token that the host knows is
      `chosen[nobody]` more; and, at `unwanted`, what padding has sampled.
    """

    tables: Sequence[DeviceBlockTables]

    def __init__(self, num_slots: int, groups: int, num_blocks: int, columns: int, device: torch.device) -> None:
        """For a cache of `num_blocks` blocks, of which no table has more than `columns`."""
        super().__init__([DeviceBlockTables(num_slots, num_blocks, columns, device) for _ in range(groups)])
        self.device = device
        self.num_slots = num_slots
        self.nobody, self.unwanted = num_slots, num_slots + 1
        self.upload_buffer = UploadBuffer(device)
        self.chosen = torch.zeros(num_slots + 2, dtype=torch.int64, device=device)

    def mark_sent(self) -> None:
        """What was missing of all tables is on the device."""
        for tables in self.tables:
            tables.mark_sent()

    def filled(self, known: Tensor, sources: Tensor) -> Tensor:
        """The tokens of rows, int64 [T]: those that are known, and of the slots that are `sources` the last chosen.

        Where one is given, the other is 0, or nobody.
        """
        return self.chosen.index_select(0, sources).add_(known)

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Keep the tokens that a step sampled for slots, both int64 [R] on the device; less than 0 if there is none."""
        self.chosen.index_copy_(0, slots, tokens.clamp(min=0))

    def check_integrity(self) -> None:
        """Raises AssertionError if the device has other tables than the host, or padding has sampled for nobody."""
        super().check_integrity()
        assert int(self.chosen[self.nobody]) == 0, "nobody has chosen a token"


def columns_of(max_model_len: int, block_size: int) -> int:
    """The most blocks of a sequence, those included that its windows have given back."""
    return -(-max_model_len // block_size) + 1
