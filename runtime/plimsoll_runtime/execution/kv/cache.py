"""The paged cache itself: blocks of tokens, and views of their keys and values for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Populating, allocate, give_back, populate
from plimsoll_runtime.execution.kv.layout import groups_of, layer_offsets
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

MOVED_BLOCKS = 32
"""Blocks that are copied at a time when the cache shrinks: there is room for so many twice."""


class KvCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each.

    A token's cell is block x block_size + offset, the same in every layer of a group. Block 0 belongs to nobody:
    padding may point at it. The tensors are views of one memory, `[num_blocks, bytes]`, in which a block lies in one
    piece whatever it is of: a group's layers one behind the other, of each layer its heads, of each head its keys and
    then its values, `[block_size, head_dim]` each. Where a layer's keys are its values as well (`latent`), both are the
    same tensor.

    `groups`: the layers of each group, each layer once; None: one group of all. A block belongs to one of the groups at
    a time and is as large as the largest of them needs.

    `whole`: layers that attend to a step's own keys and values, of which nothing is kept.

    `num_blocks` is what there are addresses for. On a CPU only the first `taken` of them need have memory (None: all),
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
                f"a cache needs blocks of at least one token and a block beside the padding block; "
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
        # Zeros and not `empty`: what was never written is then finite, and on a CPU the pages are not taken before
        # they are written.
        size = (num_blocks, self._width)
        self._ahead: Populating | None = None
        if device.type == "cpu":
            self._memory = allocate(size, dtype)
            self._ahead = populate(self._memory[: self.taken])
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
        """Elements of a head in a block."""
        return self.block_size * shape.cached_width // shape.kv_heads

    def row_strides(self, shape: AttentionShape) -> tuple[int, int]:
        """How many `rows` a layer of a shape has from one head to the next, and from one block to the next."""
        step = math.gcd(self._of_head(shape), self._width)
        return self._of_head(shape) // step, self._width // step

    def rows(self, layer: Tensor) -> Tensor:
        """A layer's keys, or its values, as `[rows, block_size x head_dim]`: some are a block's tokens of one head.

        Which ones `row_strides` says. Others lie between them, begin within them even, and none behind the last one.
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
        """So many blocks from one on, as they lie: `[count, elements]`."""
        return self._memory[first : first + count]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), whosever they are; all sources are read before a target is written.

        Where none is both, as in a step, that takes no other memory: a device may have none left.
        """
        if {source for source, _ in pairs}.isdisjoint(target for _, target in pairs):
            for source, target in pairs:
                self._memory[target].copy_(self._memory[source])
            return
        sources, targets = to_device(np.array(pairs, dtype=np.int64).T.copy(), self.device).unbind()
        self._memory.index_copy_(0, targets, self._memory.index_select(0, sources))

    def resize(self, taken: int, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) to below `taken`, and give back the pages of those from there on.

        Pages that hold a part of a block that stays are kept; what is grown to takes pages when it is written.
        """
        for start in range(0, len(moves), MOVED_BLOCKS):
            self.copy_blocks(moves[start : start + MOVED_BLOCKS])
        if taken < self.taken:
            if self._ahead is not None:
                self._ahead.stop()
            give_back(self._memory[taken : self.taken])
        self.taken = taken
