"""The CPU backend: our own kernels over a paged cache whose blocks lie as they read them."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import required
from plimsoll_kernels.cpu.op_records import ShapeRecord
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.step import PagedCache, PagedStep, paged_attention
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.cpu_executor.decoder import FusedStep
from plimsoll_runtime.models.cpu_executor.mixer_records import shape_record
from plimsoll_runtime.models.layers.attention import slopes_of


class CpuBackend:
    """One kernel for prompts' chunks and decodes alike; a fused decoder reads its steps and never calls it."""

    name: ClassVar[str] = "cpu"
    fused: ClassVar[bool] = True

    def __init__(self, cache: KvCache) -> None:
        self._kernels = required(cache.dtype)
        self._paged = PagedCache(cache.keys, cache.values, cache.group_of, block_size=cache.block_size)
        self._slopes = [slopes_of(shape) for shape in cache.shapes]
        self._shapes = [*map(shape_record, cache.shapes, self._slopes)]
        self._workspace = Buffer()

    def begin(self, batch: AttentionBatch) -> FusedStep:
        """The batch's tables as the kernels read them."""
        step = PagedStep(self._paged, batch.query_lens, batch.groups, batch.longest)
        return CpuAttention(self._kernels, self._shapes, step, self._workspace)


class CpuAttention:
    """One step's attention, layer by layer for a decoder that asks so, or `paged` as a whole."""

    def __init__(self, kernels: KernelsRecord, shapes: list[ShapeRecord], paged: PagedStep, workspace: Buffer) -> None:
        self._kernels = kernels
        self._shapes = shapes
        self._workspace = workspace
        self.paged = paged

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """query [T, heads, D], key and value [T, kv_heads, D], sinks float32 [heads] -> [T, heads, D].

        Raises ValueError without keys and values.
        """
        if key is None or value is None:
            raise ValueError(f"layer {layer} is given no keys and values, and these kernels write some for each row")
        shape = self._shapes[layer]
        if sinks is not None:
            shape = ShapeRecord.from_buffer_copy(shape)
            shape.sinks = sinks.data_ptr()
        return paged_attention(self._kernels, layer, shape, query, key, value, self.paged, self._workspace)
