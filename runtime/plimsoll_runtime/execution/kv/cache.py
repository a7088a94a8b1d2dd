"""The paged KV cache: blocks of tokens, and views of their keys and values for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Populating, allocate, give_back
from plimsoll_runtime.execution.kv.layout import groups_of, layer_offsets
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

MOVED_BLOCKS = 32
"""Blocks that are copied at a time when the cache shrinks: memory for their copy must be free."""


class KvCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each.

    A token's cell is block x block_size + offset, the same in every layer of a group. Block 0 is the padding block. The
    tensors are views of one memory, `[num_blocks, bytes]`, in which a block is contiguous: the layers of its cache
    group in order, each layer's heads, each head's keys and then its values, `[block_size, head_dim]` each. If a
    layer's keys are its values as well (`latent`), both are the same tensor.

    `groups`: the layers of each group, each layer once; None: one group of all. A block belongs to one group at a time
    and is as large as the largest group needs.

    `whole`: layers with bidirectional attention, which are not cached.

    `num_blocks` is the number of addressable blocks. On a CPU only the first `taken` of them need memory (None: all),
    and `resize` changes how many.
    """

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        taken: int | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        whole: Sequence[AttentionShape] = (),
    ) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"a cache needs blocks of at least one token and at least one block next to the padding block; "
                f"got {num_blocks} blocks of {block_size} tokens"
            )
        self.shapes = tuple(shapes)
        self.whole = tuple(whole)
        self.groups = tuple(map(tuple, [range(len(self.shapes))] if groups is None else groups))
        self.group_of = groups_of(self.shapes, self.groups)
        self.num_blocks = num_blocks
        self.taken = num_blocks if taken is None else taken
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        places = layer_offsets(self.shapes, self.groups)
        self._width = block_size * places.width
        # Zeros instead of `empty`: memory that was never written is then finite, and on a CPU pages are taken only when
        # they are written.
        size = (num_blocks, self._width)
        self._ahead: Populating | None = None
        if device.type == "cpu":
            self._memory = allocate(size, dtype)
            self._ahead = Populating(self._memory[: self.taken])
        else:
            self._memory = torch.zeros(size, dtype=dtype, device=device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for shape, place in zip(self.shapes, places.of, strict=True):
            axes = (shape.kv_heads, num_blocks, block_size, shape.head_dim)
            strides = (self._of_head(shape), self._width, shape.head_dim, 1)
            keys = self._memory.as_strided(axes, strides, block_size * place)
            values = block_size * (place + shape.head_dim)
            self.keys.append(keys)
            self.values.append(keys if shape.latent else self._memory.as_strided(axes, strides, values))

    def _of_head(self, shape: AttentionShape) -> int:
        """Return the number of elements that a block has of one head: its keys and values."""
        return self.block_size * shape.cached_width // shape.kv_heads

    def row_strides(self, shape: AttentionShape) -> tuple[int, int]:
        """Return the number of `rows` from one head of a layer to the next, and from one block to the next."""
        step = math.gcd(self._of_head(shape), self._width)
        return self._of_head(shape) // step, self._width // step

    def rows(self, layer: Tensor) -> Tensor:
        """Return a layer's keys or values as overlapping `[rows, block_size x head_dim]`; some rows are the tokens of a
        block and head.

        `row_strides` gives the indices of those. The other rows start between or within them; the last row is one of
        them.
        """
        heads, blocks, tokens, dims = layer.shape
        of_head, of_block, _, _ = layer.stride()
        step = math.gcd(of_head, of_block)
        last = (heads - 1) * of_head + (blocks - 1) * of_block
        return layer.as_strided((last // step + 1, tokens * dims), (step, 1), layer.storage_offset())

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers of a group."""
        return self.nbytes // self.num_blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self._memory.nbytes

    def blocks(self, first: int, count: int) -> Tensor:
        """Return the memory of `count` blocks from `first` on: `[count, elements]`."""
        return self._memory[first : first + count]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of any group; all sources are read before a target is written.

        If no block is both source and target, as in a step, this needs no additional memory, because a device may have
        none left.
        """
        if {source for source, _ in pairs}.isdisjoint(target for _, target in pairs):
            for source, target in pairs:
                self._memory[target].copy_(self._memory[source])
            return
        sources, targets = to_device(np.array(pairs, dtype=np.int64).T.copy(), self.device).unbind()
        self._memory.index_copy_(0, targets, self._memory.index_select(0, sources))

    def resize(self, taken: int, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) to below `taken`, and return the pages of the blocks from there on to the
        system.

        Pages that hold a part of a remaining block are kept. If the cache grows, pages are taken when they are written.
        """
        for start in range(0, len(moves), MOVED_BLOCKS):
            self.copy_blocks(moves[start : start + MOVED_BLOCKS])
        if taken < self.taken:
            if self._ahead is not None:
                self._ahead.stop()
            give_back(self._memory[taken : self.taken])
        self.taken = taken
