"""The backend of FlashInfer (Ye et al., 2025) on NVIDIA GPUs: its paged kernel over the KV cache in place.

Follows the interface of FlashInfer 0.2 and later: `plan` takes a step's tables once, `run` computes each layer.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.cache_backend import CacheBackend, LayerAttention
from plimsoll_runtime.execution.attention.capabilities import HALF, Capabilities, Target
from plimsoll_runtime.execution.attention.step_tables import StepTables, step_tables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

WORKSPACE = 128 * 2**20
"""Bytes of scratch for each wrapper, as FlashInfer's documentation advises."""


def _several_sizes_refusal(target: Target) -> str | None:
    """Return a refusal if a model has several head sizes; None otherwise.

    FlashInfer's kernels for Hopper count page strides in heads, and a block of several head sizes is not a whole number
    of heads.
    """
    several = len({shape.head_dim for shape in target.shapes}) > 1
    return "supports only one head size in a model; this one has several" if several else None


class FlashInferBackend(CacheBackend):
    """Attention by FlashInfer's kernels, with one wrapper for each distinct attention shape of a cache group. Needs the
    package, which only this class imports.
    """

    name: ClassVar[str] = "flashinfer"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda",),
        dtypes=HALF,
        features=("window", "softcap"),
        head_dims=(64, 128, 256),
        needs=("flashinfer",),
        checks=(_several_sizes_refusal,),
    )

    def __init__(self, cache: KvCache) -> None:
        import flashinfer

        super().__init__(cache)
        self._wrappers: dict[tuple[int, AttentionShape], Any] = {}
        for kind in dict.fromkeys(self._kinds):
            # Each wrapper needs its own scratch: a plan for one kind would overwrite the plan of another.
            scratch = torch.empty(WORKSPACE, dtype=torch.uint8, device=cache.device)
            self._wrappers[kind] = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, "HND")

    def attend_step(self, batch: AttentionBatch) -> LayerAttention:
        """Plan each wrapper's kernel for the step. Return a function that runs it for a layer."""
        cache = self._cache
        tables = [step_tables(group, cache.block_size) for group in batch.groups]
        for (group, shape), wrapper in self._wrappers.items():
            self._plan(wrapper, shape, tables[group])

        def attend(layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
            # [kv_heads, blocks, block, D] viewed as FlashInfer's "HND" pages, [blocks, kv_heads, block, D].
            pages = (cache.keys[layer].transpose(0, 1), cache.values[layer].transpose(0, 1))
            out: Tensor = self._wrappers[self._kinds[layer]].run(query.contiguous(), pages)
            return out

        return attend

    def _plan(self, wrapper: Any, shape: AttentionShape, tables: StepTables) -> None:
        size = self._cache.block_size
        needed = tables.num_blocks
        indices = np.concatenate(
            [tables.blocks[first:][:count] for first, count in zip(tables.first_blocks, needed, strict=True)]
        )
        wrapper.plan(
            qo_indptr=_int32(np.append(0, np.cumsum(tables.query_lens))),
            paged_kv_indptr=_int32(np.append(0, np.cumsum(needed))),
            paged_kv_indices=_int32(indices).to(self._cache.device),
            paged_kv_last_page_len=_int32(tables.context_lens - (needed - 1) * size),
            num_qo_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim_qk=shape.head_dim,
            page_size=size,
            causal=True,
            sm_scale=shape.scale,
            # Tokens to the left of the row's own; `shape.window` counts the row's own too.
            window_left=-1 if shape.window is None else shape.window - 1,
            logits_soft_cap=shape.softcap,
            q_data_type=self._cache.dtype,
            kv_data_type=self._cache.dtype,
        )


def _int32(values: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))
