"""The attention backends of the C++ CPU kernels: over the KV cache, and bidirectional."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer, allocate
from plimsoll_kernels.cpu.library import DTYPES, kernels, required
from plimsoll_kernels.cpu.op_records import ShapeRecord
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.step import MAX_HEAD_DIM, SUB_BLOCK, PagedCache, PagedStep, paged_attention
from plimsoll_runtime.execution.attention.backends.bidirectional import check_whole
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.capabilities import SCORES, Capabilities, Target, dtypes_text, multiples
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.cpu_executor.decoder import FusedStep
from plimsoll_runtime.models.layers.attention import slopes_of
from plimsoll_runtime.models.ops.attention import shape_record
from plimsoll_runtime.models.spec.attention import AttentionShape


def _kernels_missing(target: Target) -> str | None:
    reason = f"has no kernels for {dtypes_text(target.dtype)} that this processor can run, or they were not built"
    return reason if kernels(target.dtype) is None else None


class CpuBackend:
    """Attention over the KV cache by the C++ kernels, for chunks and decodes alike.

    The CPU executor reads the tables of a step from `CpuAttention.paged` and computes attention itself; others, such as
    the benchmark, call the step for each layer.
    """

    name: ClassVar[str] = "cpu"
    fused: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cpu",),
        dtypes=tuple(DTYPES),
        features=(*SCORES, "latent", "latent_masked", "whole"),
        head_dims=multiples(SUB_BLOCK, MAX_HEAD_DIM),
        block_sizes=multiples(SUB_BLOCK),
        checks=(lambda target: target.unfused, _kernels_missing),
    )

    def __init__(self, cache: KvCache) -> None:
        self._kernels = required(cache.dtype)
        self._paged = PagedCache(cache.keys, cache.values, cache.group_of, block_size=cache.block_size)
        self._slopes = [slopes_of(shape) for shape in cache.shapes]
        self._shapes = [*map(shape_record, cache.shapes, self._slopes)]
        self._workspace = Buffer()

    def begin(self, batch: AttentionBatch) -> FusedStep:
        """Return the step's attention, which is called for each layer. Its block tables are in the layout that the C++
        kernels read.
        """
        step = PagedStep(self._paged, batch.query_lens, batch.groups, batch.longest)
        return CpuAttention(self._kernels, self._shapes, step, self._workspace)


class CpuAttention:
    """One step's attention: called for each layer, or read from `paged` by the CPU executor."""

    def __init__(self, kernels: KernelsRecord, shapes: list[ShapeRecord], paged: PagedStep, workspace: Buffer) -> None:
        self._kernels = kernels
        self._shapes = shapes
        self._workspace = workspace
        self.paged = paged

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Write a layer's keys and values to the cache, then attend.

        query [T, heads, D], key and value [T, kv_heads, D], sinks float32 [heads] -> [T, heads, D]. Raises ValueError
        without keys and values.
        """
        if key is None or value is None:
            raise ValueError(f"layer {layer} has no keys and values; the CPU kernels need them for each row")
        shape = self._shapes[layer]
        if sinks is not None:
            shape = ShapeRecord.from_buffer_copy(shape)
            shape.sinks = sinks.data_ptr()
        return paged_attention(self._kernels, layer, shape, query, key, value, self.paged, self._workspace)


class CpuBidirectionalBackend:
    """Bidirectional attention by the CPU kernels. Reads the layers' shapes from `cache.whole`.

    The keys and values of a step are laid out as a cache in which each prompt has its own blocks. The next layer
    overwrites them: nothing is kept.
    """

    name: ClassVar[str] = "cpu"
    fused: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = CpuBackend.capabilities

    def __init__(self, cache: KvCache) -> None:
        self._kernels = required(cache.dtype)
        self._shapes = cache.whole
        self._records = [shape_record(shape) for shape in cache.whole]
        self._dtype = cache.dtype
        self._workspace = Buffer()
        self._paged = _laid(self._shapes, 1, self._dtype)
        self._blocks = 1

    def begin(self, batch: AttentionBatch) -> FusedStep:
        """Return the step's attention, which is called for each layer. Raises ValueError if the step lacks a part of a
        prompt.
        """
        check_whole(batch)
        counts = [-(-length // SUB_BLOCK) for length in batch.query_lens]
        *begins, total = accumulate(counts, initial=0)
        if total > self._blocks:
            self._paged, self._blocks = _laid(self._shapes, total, self._dtype), total
        first_cells = torch.tensor(begins) * SUB_BLOCK
        before = torch.tensor(list(accumulate(batch.query_lens[:-1], initial=0)))
        lengths = torch.tensor(batch.query_lens)
        cells = torch.arange(sum(batch.query_lens)) + (first_cells - before).repeat_interleave(lengths)
        tables = replace(batch, cells=cells, block_tables=BlockTables(array("i", range(total)), begins, counts))
        step = PagedStep(self._paged, batch.query_lens, [tables], batch.longest)
        return CpuAttention(self._kernels, self._records, step, self._workspace)


def _laid(shapes: Sequence[AttentionShape], blocks: int, dtype: torch.dtype) -> PagedCache:
    """Return a new cache of `blocks` blocks. All layers share its memory, which is as large as the largest layer needs;
    each views it with its own number and size of heads.
    """
    memory = allocate((2, blocks * SUB_BLOCK * max(shape.key_width for shape in shapes)), dtype)
    keys, values = (
        [half[: blocks * SUB_BLOCK * s.key_width].view(s.kv_heads, blocks, SUB_BLOCK, s.head_dim) for s in shapes]
        for half in memory
    )
    return PagedCache(keys, values, [0] * len(shapes))
