"""What is made for a group of the cache."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DecodeTables(NamedTuple):
    """Of S decodes.

    block_tables: int32 `[S, width]`; what stands behind a context's last block is not defined, and nobody may read it.
    context_lens: int32 `[S]`, tokens in the blocks that a decode still has, its own included.
    cells: int64 `[S]`, where its keys and values go: block x block_size + offset.
    """

    block_tables: Tensor
    context_lens: Tensor
    cells: Tensor
