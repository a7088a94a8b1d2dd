"""What is kept of a batch on a device that computes behind the host's back."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_runtime.execution.inputs.block_tables import BlockTableState, DeviceBlockTables
from plimsoll_runtime.execution.inputs.upload_buffer import CopyLane, UploadBuffer


class DeviceState:
    """The tokens that slots chose last, which nobody has seen yet when the next step wants them; block tables; and the
    upload buffer, with which all that a step says comes there.

    - `tables`, `mirrors`: of each group of the cache. All of them stay where they are on the device, so that graphs
      may read and write them.
    - `chosen`: int64 [num_slots + 2]. Behind those of slots is nobody's, which is 0, so that a token that the host
      knows is `chosen[nobody]` more; and, at `unwanted`, what padding has chosen.
    """

    def __init__(
        self,
        num_slots: int,
        groups: int,
        num_blocks: int,
        columns: int,
        device: torch.device,
        lane: CopyLane | None = None,
    ) -> None:
        """For a cache of `num_blocks` blocks, of which no table has more than `columns`."""
        self.device = device
        self.nobody, self.unwanted = num_slots, num_slots + 1
        self.outbox = UploadBuffer(device, lane)
        self.tables = [BlockTableState(num_slots, num_blocks, noted_up_to=columns) for _ in range(groups)]
        self.mirrors = [DeviceBlockTables(tables, device) for tables in self.tables]
        self.chosen = torch.zeros(num_slots + 2, dtype=torch.int64, device=device)

    def told(self) -> None:
        """What was missing of all tables is there."""
        for mirror in self.mirrors:
            mirror.told()

    def filled(self, known: Tensor, sources: Tensor) -> Tensor:
        """The tokens of rows, int64 [T]: those that are known, and of the slots that are `sources` the last chosen.

        Where one is given, the other is 0, or nobody.
        """
        return self.chosen.index_select(0, sources).add_(known)

    def chose(self, slots: Tensor, tokens: Tensor) -> None:
        """A step has chosen tokens for slots, both int64 [R] on the device; less than 0 where it could not."""
        self.chosen.index_copy_(0, slots, tokens.clamp(min=0))

    def check_integrity(self) -> None:
        """Raises AssertionError where a table there is another one than the host's, or nobody has chosen a token."""
        for mirror in self.mirrors:
            mirror.check_integrity()
        assert int(self.chosen[self.nobody]) == 0, "nobody has chosen a token"


def columns_of(max_model_len: int, block_size: int) -> int:
    """The most blocks of a sequence, those included that its windows have given back."""
    return -(-max_model_len // block_size) + 1
