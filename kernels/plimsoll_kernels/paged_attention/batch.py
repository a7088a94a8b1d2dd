"""The sequences of one step as the kernels read them: made once a step, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """int32 tensors of S sequences on one device, whose query rows are in the order of the sequences.

    query_starts: `[S + 1]`, the first row of each sequence, and the number of rows.
    context_lens: `[S]`, cached tokens, the step's own included: the last row has the position context_len - 1.
    block_tables: `[S, width]`; entries beyond a sequence's context are not read.
    max_query_len, max_context_len: the largest of each, on the host.
    decodes: the number of sequences with one row, on the host.
    prefixes: the decodes whose tables begin with the same blocks; None: none are shared.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    max_query_len: int
    max_context_len: int
    decodes: int
    prefixes: PrefixTables | None = None

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        device: torch.device | str,
    ) -> PagedBatch:
        """Return a batch from lists; tables of unequal length are padded with block 0."""
        starts = [0]
        for length in query_lens:
            starts.append(starts[-1] + length)
        width = max(len(table) for table in block_tables)
        padded = [[*table, *[0] * (width - len(table))] for table in block_tables]
        return cls(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
            block_tables=torch.tensor(padded, dtype=torch.int32, device=device),
            max_query_len=max(query_lens),
            max_context_len=max(context_lens),
            decodes=sum(length == 1 for length in query_lens),
        )
