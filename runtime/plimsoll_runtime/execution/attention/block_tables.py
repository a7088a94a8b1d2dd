"""The block tables of a step's sequences, where they lie."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.models.layers.device_copy import sent


class OnDevice(NamedTuple):
    """The tables of a batch of S sequences where they are kept on a device too.

    blocks: int32 [N], the numbers of all tables. query_starts: int64 [S + 1], the first row of each sequence, and the
    number of rows. context_lens, begins: int64 [S], each one's tokens, and where its table lies in `blocks`.
    """

    blocks: Tensor
    query_starts: Tensor
    context_lens: Tensor
    begins: Tensor


class BlockTables(NamedTuple):
    """Sequence i's blocks, in order, are `counts[i]` of `blocks` from `begins[i]` on. Between tables may lie anything.

    Whoever writes into `blocks` (int32) sees to it that the cache has each of them. `there`: the same, on a device.
    """

    blocks: array[int]
    begins: Sequence[int]
    counts: Sequence[int]
    there: OnDevice | None = None

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]]) -> BlockTables:
        """From lists, one table behind the other."""
        counts = [len(table) for table in tables]
        begins = list(accumulate(counts[:-1], initial=0))
        return cls(array("i", chain.from_iterable(tables)), begins, counts)

    def on(self, device: torch.device) -> Tensor:
        """`blocks` on a device, until the next step."""
        return sent(np.frombuffer(self.blocks, np.int32), device) if self.there is None else self.there.blocks


def gathered(blocks: Tensor, begins: Tensor, width: int) -> Tensor:
    """Tables of up to `width` blocks side by side: int32 [N], int64 [S] -> int32 [S, width].

    What stands behind a shorter one's end is any block's number.
    """
    columns = torch.arange(width, device=blocks.device)
    return blocks[(begins[:, None] + columns).clamp_(max=blocks.numel() - 1)]
