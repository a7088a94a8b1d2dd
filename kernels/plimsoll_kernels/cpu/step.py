"""The paged cache and the sequences of one step, as the CPU kernels read them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import CacheRecord, KernelsRecord, LayerRecord, StepRecord
from plimsoll_kernels.cpu.threads import thread_count

SUB_BLOCK = 16
"""Tokens that lie together in the cache: a block's size has to be a multiple."""

MAX_HEAD_DIM = 1024

Integers = NDArray[np.int64]


class PagedCache:
    """Keys and values of all layers, `[kv_heads, num_blocks, block_size, head_dim]` each, blocks contiguous.

    Within a block the kernels keep an order of their own: nobody else can read what they write. Blocks may be copied
    whole.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        if any(k.stride() != v.stride() or not k[0, 0].is_contiguous() for k, v in zip(keys, values, strict=True)):
            raise ValueError("keys and values of a layer lie alike, each block contiguous")
        self._tensors = (*keys, *values)
        self.record = CacheRecord(
            pointers(keys),
            pointers(values),
            *((ctypes.c_int64 * len(keys))(*(k.stride(d) for k in keys)) for d in (0, 1)),
            keys[0].shape[2],
        )


class PagedStep:
    """The rows of S sequences, one sequence after the other, T in all.

    slots: int64 `[T]`, where each row's key and value go (block x block_size + offset).
    first_rows: `[S]`, contexts: `[S]` (tokens in the cache after this step).
    blocks: the block tables one after the other, first_blocks: `[S]`, where each begins.
    """

    def __init__(
        self,
        cache: PagedCache,
        slots: Tensor,
        *,
        first_rows: Integers,
        contexts: Integers,
        blocks: Integers,
        first_blocks: Integers,
    ) -> None:
        rows, count = slots.numel(), len(contexts)
        self.cache = cache
        self.longest = int(contexts.max())
        # One array in one conversion: each call of numpy's is a part of a small step that can be seen.
        self._integers = np.concatenate((first_rows, (rows,), contexts, first_blocks, blocks), dtype=np.int32)
        self._slots = slots
        address = self._integers.ctypes.data
        self.record = StepRecord(
            rows=rows,
            sequences=count,
            slots=slots.data_ptr(),
            first_rows=address,
            contexts=address + 4 * (count + 1),
            first_blocks=address + 4 * (2 * count + 1),
            blocks=address + 4 * (3 * count + 1),
        )


def paged_attention(
    kernels: KernelsRecord,
    layer: int,
    shape: LayerRecord,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: PagedStep,
    workspace: Buffer,
) -> Tensor:
    """Write a layer's keys and values to the cache, then attend each row to its sequence's tokens up to itself.

    query `[T, heads, head_dim]`, key and value `[T, kv_heads, head_dim]` in the kernels' dtype -> like query. Of
    `shape` the fields that describe attention count.
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
    """An array of the addresses of tensors."""
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
