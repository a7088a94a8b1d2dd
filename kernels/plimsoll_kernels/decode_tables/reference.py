"""Block tables of decodes in plain torch: 17 launches instead of the kernels' two."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.decode_tables.tables import DecodeTables


def write_blocks_reference(blocks: Tensor, places: Tensor, written: Tensor) -> None:
    """Write the block numbers `written`, int64 `[S]`, into blocks, int32 `[N]`, at places, int64 `[S]`.

    Equal places must get equal numbers: padding writes 0 to the padding row.
    """
    blocks.index_copy_(0, places, written.to(torch.int32))


def decode_tables_reference(
    blocks: Tensor, positions: Tensor, begins: Tensor, firsts: Tensor, block_size: int, width: int
) -> DecodeTables:
    """Return the tables of S decodes as rows, from blocks, int32 `[N]`.

    positions, int64 `[S]`: the position of each decode's token in its sequence.
    begins, int64 `[S]`: the index of its table in blocks.
    firsts, int64 `[S]`: the number of blocks before the table that its windows have freed.
    width: at least the number of blocks of any table.
    """
    last = torch.div(positions, block_size, rounding_mode="floor") - firsts
    columns = torch.arange(width, device=blocks.device)
    own = blocks.index_select(0, begins + last).to(torch.int64)
    return DecodeTables(
        block_tables=blocks[(begins[:, None] + columns).clamp_(max=blocks.numel() - 1)],
        context_lens=(positions + 1 - firsts * block_size).to(torch.int32),
        cells=own * block_size + positions % block_size,
    )
