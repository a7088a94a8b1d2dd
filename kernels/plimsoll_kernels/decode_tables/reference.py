"""The same in plain torch: 17 launches, where the kernels are two."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.decode_tables.tables import DecodeTables


def write_blocks_reference(blocks: Tensor, places: Tensor, written: Tensor) -> None:
    """Into blocks, int32 `[N]`, at places, int64 `[S]`, what is written, int64 `[S]`: block numbers.

    A place that is named twice is to get the same both times: padding writes 0 to one of nobody's.
    """
    blocks.index_copy_(0, places, written.to(torch.int32))


def decode_tables_reference(
    blocks: Tensor, positions: Tensor, begins: Tensor, firsts: Tensor, block_size: int, width: int
) -> DecodeTables:
    """The tables of S decodes side by side, from blocks, int32 `[N]`.

    positions, int64 `[S]`: where each one's token stands in its sequence.
    begins, int64 `[S]`: where its table begins in blocks.
    firsts, int64 `[S]`: how many blocks its windows have given back, which stood before that.
    width: at least as many blocks as any table has.
    """
    last = torch.div(positions, block_size, rounding_mode="floor") - firsts
    columns = torch.arange(width, device=blocks.device)
    own = blocks.index_select(0, begins + last).to(torch.int64)
    return DecodeTables(
        block_tables=blocks[(begins[:, None] + columns).clamp_(max=blocks.numel() - 1)],
        context_lens=(positions + 1 - firsts * block_size).to(torch.int32),
        cells=own * block_size + positions % block_size,
    )
