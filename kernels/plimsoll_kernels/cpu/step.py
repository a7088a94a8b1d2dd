"""The paged cache and the sequences of one step, as the CPU kernels read them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.op_records import ShapeRecord
from plimsoll_kernels.cpu.records import CacheRecord, GroupRecord, KernelsRecord, StepRecord
from plimsoll_kernels.cpu.threads import thread_count

SUB_BLOCK = 16
"""Tokens that are interleaved in the cache: the block size must be a multiple."""

MAX_HEAD_DIM = 1024


class PagedCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each, blocks contiguous.

    The kernels have their own order within a block, which no other code can read. Blocks may be copied as a whole.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        groups: Sequence[int] | None = None,
        *,
        block_size: int | None = None,
    ) -> None:
        """`groups`: the cache group of each layer; None: all layers have the first one.

        `block_size`: for a cache without layers, whose blocks are empty.
        """
        if any(k.stride() != v.stride() or not k[0, 0].is_contiguous() for k, v in zip(keys, values, strict=True)):
            raise ValueError("keys and values of a layer must have the same strides and contiguous blocks")
        self._tensors = (*keys, *values)
        self.block_size = keys[0].shape[2] if block_size is None else block_size
        self.record = CacheRecord(
            keys=pointers(keys),
            values=pointers(values),
            head_strides=(ctypes.c_int64 * len(keys))(*(k.stride(0) for k in keys)),
            block_strides=(ctypes.c_int64 * len(keys))(*(k.stride(1) for k in keys)),
            groups=(ctypes.c_int32 * len(keys))(*(groups or ())),
            block_size=self.block_size,
        )


class BlockTables(Protocol):
    """Block tables: sequence i has the `counts[i]` entries of `blocks`, int32, from `begins[i]` on."""

    @property
    def blocks(self) -> array[int]:
        """The blocks of all tables. Each must be a block of the cache."""

    @property
    def begins(self) -> Sequence[int]:
        """The index of each table in `blocks`."""

    @property
    def counts(self) -> Sequence[int]:
        """The number of blocks of each table."""


class Tables(Protocol):
    """The tokens of a step in a cache group.

    cells: int64 `[T]`, the cell of each row's key and value (block x block_size + offset).
    context_lens: tokens of each sequence in its table after this step. Attention counts positions from the table's
      first token on.
    block_tables: blocks of each sequence in order, enough for its context. The kernels read them in place.
    """

    @property
    def cells(self) -> Tensor:
        """The cells of the rows."""

    @property
    def context_lens(self) -> Sequence[int]:
        """The tokens of each sequence in its table."""

    @property
    def block_tables(self) -> BlockTables:
        """The blocks of each sequence."""


class PagedStep:
    """The rows of S sequences, sequence by sequence, T in all.

    query_lens: rows of each sequence. groups: the tables of each cache group. longest: tokens of the longest sequence,
    None: as many as in the tables of the first cache group. Raises ValueError if a table is too short.
    """

    def __init__(
        self, cache: PagedCache, query_lens: Sequence[int], groups: Sequence[Tables], longest: int | None = None
    ) -> None:
        self.cache = cache
        self.longest = max(groups[0].context_lens) if longest is None else longest
        count = len(query_lens)
        # Without numpy: after a small step the CPU's caches are full of weights, and each numpy function must be read
        # from memory.
        integers = array("i", accumulate(query_lens, initial=0))
        begins = []
        for group in groups:
            begins.append(len(integers))
            tables, contexts = group.block_tables, group.context_lens
            integers.extend(contexts)
            integers.extend(tables.begins)
            for blocks, context in zip(tables.counts, contexts, strict=True):
                if blocks * cache.block_size < context:
                    raise ValueError(f"{context} tokens do not fit into {blocks} blocks of {cache.block_size}")
        self._kept = (integers, groups)
        address, _ = integers.buffer_info()
        records = (GroupRecord * len(groups))()
        for record, group, begin in zip(records, groups, begins, strict=True):
            record.cells = group.cells.data_ptr()
            record.contexts = address + 4 * begin
            record.first_blocks = address + 4 * (begin + count)
            record.blocks, _ = group.block_tables.blocks.buffer_info()
        self.record = StepRecord(rows=groups[0].cells.numel(), sequences=count, groups=records, first_rows=address)

    def hold(self, states: Sequence[Tensor], rows: Sequence[int]) -> None:
        """Set the recurrent states of sequences, `[rows, ...]` each, contiguous, and the row of each sequence. They are
        updated in place. Raises ValueError if two sequences share a row or one has none.
        """
        own = array("i", rows)
        if len(own) != self.record.sequences or len(set(rows)) < len(own):
            raise ValueError(
                f"{self.record.sequences} sequences need one row of states each; got the rows {list(rows)}"
            )
        found = pointers(states)
        self._held = (found, own, states)
        self.record.states = ctypes.cast(found, ctypes.c_void_p)
        self.record.state_rows, _ = own.buffer_info()


def paged_attention(
    kernels: KernelsRecord,
    layer: int,
    shape: ShapeRecord,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: PagedStep,
    workspace: Buffer,
) -> Tensor:
    """Write a layer's keys and values to the cache, then attend each row to its sequence's tokens up to itself.

    query `[T, heads, head_dim]`, key and value `[T, kv_heads, head_dim]` in the kernels' dtype -> shaped like query.
    """
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    out = torch.empty_like(query)
    threads = thread_count()
    step.record.workspace = workspace.pointer(kernels.attention_workspace(shape.head_dim, threads))
    kernels.attention(
        *(x.data_ptr() for x in (query, key, value, out)),
        *(ctypes.byref(shape), layer, ctypes.byref(step.cache.record), ctypes.byref(step.record), threads),
    )
    return out


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return an array of the addresses of tensors."""
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
