"""The paged cache itself: a key and a value tensor for each layer, cut into blocks of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Populating, allocate, give_back, populate
from plimsoll_runtime.execution.kv_places import Offsets, Places, groups_of, offsets_of, places_of
from plimsoll_runtime.models.spec.attention import AttentionShape

STAGED_BLOCKS = 32
"""Blocks that are put together on a GPU at a time, on their way to and from host memory."""


class KvCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each.

    A token's cell is block x block_size + offset, the same in every layer of a group. Heads come first so that one
    block of one head is contiguous: reading a sequence copies whole runs of block_size x head_dim elements.
    Block 0 belongs to nobody: padding may point at it. `paired` lays all heads' keys and values of a block together,
    for backends that read them in one stream (on a CPU). Where a layer's keys are its values as well (`latent`), both
    are the same tensor.

    `groups`: the layers of each group, each layer once; None: one group of all. The n-th layers of all groups lie in
    the same memory, in blocks that belong to one of the groups at a time: a block has as many bytes in any of them.
    Where their heads differ in number or size, a block's bytes of all layers of a group lie together instead, and the
    tensors are views with the same axes (`row_strides`).

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
        paired: bool = False,
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
        self._ahead: Populating | None = None
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.keys: list[Tensor]
        self.values: list[Tensor]
        self._offsets: Offsets | None = None
        if (places := places_of(self.shapes, self.groups)) is not None:
            self._allocate(places, paired=paired)
        elif paired:
            raise ValueError("layers of different heads that share memory cannot lie in pairs")
        else:
            self._offsets = offsets_of(self.shapes, self.groups)
            self._allocate_together(self._offsets)

    def _allocate(self, places: Places, *, paired: bool) -> None:
        """A tensor of keys and one of values for each place."""
        num_blocks, block_size, dtype, device = self.num_blocks, self.block_size, self.dtype, self.device
        # Zeros and not `empty`: what was never written is then finite, and on a CPU the pages are not taken before
        # they are written.
        sizes = [(heads, num_blocks, block_size, dims) for heads, dims, _ in places.shapes]
        if paired and any(shape.latent for shape in self.shapes):
            raise ValueError("keys that are values as well cannot lie in pairs")
        if paired:
            # One allocation: huge pages that each layer filled up for itself would go beyond what was asked for.
            counts = [2 * math.prod(size) for size in sizes]
            whole = allocate((sum(counts),), dtype).split_with_sizes(counts)
            both = [
                layer.view(blocks, heads, 2, tokens, dims)
                for layer, (heads, blocks, tokens, dims) in zip(whole, sizes, strict=True)
            ]
            self._ahead = populate([layer[: self.taken] for layer in both])
            keys, values = ([t[:, :, i].transpose(0, 1) for t in both] for i in (0, 1))
            self._parts = self._regions = both
        else:
            keys = [torch.zeros(size, dtype=dtype, device=device) for size in sizes]
            values = [
                same if latent else torch.zeros(size, dtype=dtype, device=device)
                for same, size, (*_, latent) in zip(keys, sizes, places.shapes, strict=True)
            ]
        # Each tensor once: keys that are values as well stand first.
        self._tensors = [*keys, *(v for v, (*_, latent) in zip(values, places.shapes, strict=True) if not latent)]
        if not paired:
            self._parts = [t.transpose(0, 1) for t in self._tensors]
            self._regions = [head for t in self._tensors for head in t]
        self.keys, self.values = ([tensors[place] for place in places.of] for tensors in (keys, values))

    def _allocate_together(self, offsets: Offsets) -> None:
        """One tensor, of which layers are views."""
        size, width = self.block_size, self.block_size * offsets.width
        whole = torch.zeros((self.num_blocks, width), dtype=self.dtype, device=self.device)

        def view(shape: AttentionShape, offset: int) -> Tensor:
            heads = (shape.kv_heads, self.num_blocks, size, shape.head_dim)
            return whole.as_strided(heads, (size * shape.head_dim, width, shape.head_dim, 1), offset * size)

        layers = list(zip(self.shapes, offsets.of, strict=True))
        self.keys = [view(shape, offset) for shape, offset in layers]
        self.values = [view(shape, offset + shape.key_width) for shape, offset in layers]
        self._tensors, self._parts, self._regions = [whole[None]], [whole], [whole]

    def row_strides(self, shape: AttentionShape) -> tuple[int, int]:
        """How many `rows` a layer of a shape has from one head to the next, and from one block to the next."""
        if self._offsets is None:
            return self.num_blocks, 1
        return 1, self._offsets.width // shape.head_dim

    def rows(self, layer: Tensor) -> Tensor:
        """A layer's keys, or its values, as `[rows, block_size x head_dim]`: a row is a block's tokens of one head.

        Other layers' rows may lie between its own (see `row_strides`), and none behind its last one.
        """
        heads, blocks, tokens, dims = layer.shape
        last = (heads - 1) * layer.stride(0) + (blocks - 1) * layer.stride(1)
        row = tokens * dims
        return layer.as_strided((last // row + 1, row), (row, 1), layer.storage_offset())

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers of a group."""
        return self.nbytes // self.num_blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' keys and values."""
        return sum(t.nbytes for t in self._tensors)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), whosever they are; all sources are read before a target is written."""
        if not pairs:
            return
        sources, targets = torch.tensor(list(pairs), dtype=torch.int64, device=self.device).unbind(1)
        for tensor in self._tensors:
            tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def resize(self, taken: int, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) to below `taken`, and give back the pages of those from there on.

        Pages that hold a part of a block that stays are kept; what is grown to takes pages when it is written.
        """
        for start in range(0, len(moves), STAGED_BLOCKS):
            self.copy_blocks(moves[start : start + STAGED_BLOCKS])
        if taken < self.taken:
            if self._ahead is not None:
                self._ahead.stop()
            for region in self._regions:
                give_back(region[taken : self.taken])
        self.taken = taken

    def read_blocks(self, pairs: Sequence[tuple[int, int]], host: Tensor) -> None:
        """Copy blocks (block, row) to rows of host memory, uint8 `[rows, block_bytes]`, in the cache's own order.

        The rows may be read on return: on a GPU this waits for the copies.
        """
        blocks, rows = [block for block, _ in pairs], [row for _, row in pairs]
        if self.device.type == "cpu":
            self._copy(self._parts, blocks, self._as_parts(host), rows)
            return
        for start in range(0, len(pairs), STAGED_BLOCKS):
            part = slice(start, start + STAGED_BLOCKS)
            staging = torch.empty(len(rows[part]), self.block_bytes, dtype=torch.uint8, device=self.device)
            index = torch.tensor(blocks[part], device=self.device)
            for source, target in zip(self._parts, self._as_parts(staging), strict=True):
                target.copy_(source.index_select(0, index))
            for number, row in enumerate(rows[part]):
                host[row].copy_(staging[number], non_blocking=True)
        torch.accelerator.current_stream(self.device).synchronize()

    def write_blocks(self, pairs: Sequence[tuple[int, int]], host: Tensor) -> None:
        """Fill blocks from rows of host memory (row, block): what `read_blocks` put there."""
        rows, blocks = [row for row, _ in pairs], [block for _, block in pairs]
        if self.device.type == "cpu":
            self._copy(self._as_parts(host), rows, self._parts, blocks)
            return
        for start in range(0, len(pairs), STAGED_BLOCKS):
            part = slice(start, start + STAGED_BLOCKS)
            staging = torch.empty(len(rows[part]), self.block_bytes, dtype=torch.uint8, device=self.device)
            for number, row in enumerate(rows[part]):
                staging[number].copy_(host[row], non_blocking=True)
            index = torch.tensor(blocks[part], device=self.device)
            for source, target in zip(self._as_parts(staging), self._parts, strict=True):
                target.index_copy_(0, index, source)

    def _as_parts(self, memory: Tensor) -> list[Tensor]:
        """Rows of bytes as what lies together of each layer, `[rows, ...]`, like the cache's own."""
        elements = memory.view(self.dtype)
        views, start = [], 0
        for part in self._parts:
            shape = part.shape[1:]
            views.append(elements[:, start : start + shape.numel()].view(-1, *shape))
            start += shape.numel()
        return views

    @staticmethod
    def _copy(sources: Sequence[Tensor], of: Sequence[int], targets: Sequence[Tensor], to: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            for i, j in zip(of, to, strict=True):
                target[j].copy_(source[i])
