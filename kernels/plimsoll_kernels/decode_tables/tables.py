"""The tables of decodes in a cache group."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DecodeTables(NamedTuple):
    """The tables of S decodes.

    block_tables: int32 `[S, width]`; entries after a context's last block are undefined and must not be read.
    context_lens: int32 `[S]`, tokens in the blocks that a decode still has, its own included.
    cells: int64 `[S]`, the cell of its key and value: block x block_size + offset.
    """

    block_tables: Tensor
    context_lens: Tensor
    cells: Tensor
