"""The paged cache itself: a key and a value tensor for each layer, cut into blocks of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plimsoll_kernels.cpu.huge_pages import allocate, populate
from plimsoll_runtime.models.spec import AttentionShape


class KvCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each.

    A token's slot is block x block_size + offset, the same in every layer. Heads come first so that one block of
    one head is contiguous: reading a sequence copies whole runs of block_size x head_dim elements.
    Block 0 belongs to nobody: padding may point at it. `paired` lays all heads' keys and values of a block together,
    for backends that read them in one stream (on a CPU).
    """

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        paired: bool = False,
    ) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"a cache needs blocks of at least one token and a block beside the padding block; "
                f"got {num_blocks} blocks of {block_size} tokens"
            )
        self.shapes = tuple(shapes)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        # Zeros and not `empty`: what was never written is then finite, and on a CPU the pages are not taken before
        # they are written.
        sizes = [(s.kv_heads, num_blocks, block_size, s.head_dim) for s in self.shapes]
        if paired:
            both = [allocate((blocks, heads, 2, tokens, dims), dtype) for heads, blocks, tokens, dims in sizes]
            populate(both)
            self.keys, self.values = ([t[:, :, i].transpose(0, 1) for t in both] for i in (0, 1))
        else:
            self.keys = [torch.zeros(size, dtype=dtype, device=device) for size in sizes]
            self.values = [torch.zeros(size, dtype=dtype, device=device) for size in sizes]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' keys and values."""
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) in every layer; all sources are read before a target is written."""
        if not pairs:
            return
        sources, targets = torch.tensor(list(pairs), dtype=torch.int64, device=self.device).unbind(1)
        for tensor in (*self.keys, *self.values):
            tensor.index_copy_(1, targets, tensor.index_select(1, sources))
