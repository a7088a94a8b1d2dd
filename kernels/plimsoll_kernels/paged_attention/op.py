"""Paged attention and cache writes: check arguments, then run kernel or reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, check_shape, use_triton
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.configs import DEFAULTS, PagedConfigs
from plimsoll_kernels.paged_attention.reference import paged_attention_reference, write_cache_reference
from plimsoll_kernels.paged_attention.terms import ScoreTerms


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    configs: PagedConfigs = DEFAULTS,
    implementation: Implementation = "auto",
) -> Tensor:
    """Attend each row to its sequence's cached tokens up to its own position; see the reference for the terms.

    query `[T, heads, D]`, caches `[kv_heads, num_blocks, block_size, D]` -> contiguous `[T, heads, D]`. Raises
    ValueError for wrong shapes, dtypes and devices. The values of the batch's tensors (rows, lengths, blocks) are not
    checked, because reading them back would stall a GPU.

    Decodes and chunks are two launches: decodes are bound by reading memory and need few rows and many programs, chunks
    by products and need many rows. In a mixed batch each launch skips the other's sequences, in any order. Blocks that
    decodes share, if the batch has prefixes, are read once for all of them, by a launch before theirs.
    """
    _check_caches(query, key_cache, value_cache)
    heads, kv_heads = query.shape[1], key_cache.shape[0]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be at least 1, the row itself")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap is {softcap}; it must be positive")
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1, the row itself")
    for name, tensor in (("slopes", slopes), ("sinks", sinks)):
        if tensor is not None:
            check_shape(name, tensor, heads)
            if tensor.dtype != torch.float32 or tensor.device != query.device or tensor.stride(0) != 1:
                raise ValueError(
                    f"{name} is {tensor.dtype} on {tensor.device}; expected contiguous float32 on the device of query"
                )
    check_batch(batch, query.device)
    terms = ScoreTerms(scale, window, softcap, chunk, slopes, sinks)
    if not use_triton(implementation, query):
        return paged_attention_reference(query, key_cache, value_cache, batch, **terms._asdict())
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    arguments = (out, query, key_cache, value_cache, batch, terms)
    if batch.decodes:
        from plimsoll_kernels.paged_attention.decode.kernel import launch_decode

        launch_decode(*arguments, config=configs.decode)
    if batch.max_query_len > 1:
        from plimsoll_kernels.paged_attention.prefill.kernel import launch_prefill

        launch_prefill(*arguments, config=configs.prefill)
    return out


def write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cells: Tensor,
    *,
    implementation: Implementation = "auto",
) -> None:
    """Write row t of key and value `[T, kv_heads, D]` to cell `cells[t]` (block x block_size + offset)."""
    _check_caches(key, key_cache, value_cache)
    check_floats(key=key, value=value)
    check_shape("key", key, key.shape[0], key_cache.shape[0], key_cache.shape[3])
    check_shape("value", value, *key.shape)
    check_shape("cells", cells, key.shape[0])
    if cells.dtype != torch.int64 or cells.device != key.device:
        raise ValueError(f"cells is {cells.dtype} on {cells.device}; expected int64 on the device of key")
    if not use_triton(implementation, key):
        write_cache_reference(key, value, key_cache, value_cache, cells)
        return
    from plimsoll_kernels.paged_attention.kernel import launch_write_cache

    launch_write_cache(key, value, key_cache, value_cache, cells)


def _check_caches(rows: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    if rows.dim() != 3 or key_cache.dim() != 4 or rows.shape[2] != key_cache.shape[3]:
        raise ValueError(
            f"rows {list(rows.shape)} and cache {list(key_cache.shape)} do not match: expected [T, heads, D] "
            "and [kv_heads, num_blocks, block_size, D]"
        )
    check_floats(rows=rows, key_cache=key_cache, value_cache=value_cache)
    check_shape("value_cache", value_cache, *key_cache.shape)
    if value_cache.stride() != key_cache.stride():
        raise ValueError(f"the caches have strides {key_cache.stride()} and {value_cache.stride()}; they must agree")


def check_batch(batch: PagedBatch, device: torch.device) -> None:
    """Raise ValueError unless the batch's tensors have matching shapes and are int32 on the query's device."""
    sequences = batch.context_lens.shape[0]
    check_shape("query_starts", batch.query_starts, sequences + 1)
    check_shape("block_tables", batch.block_tables, sequences, batch.block_tables.shape[-1])
    tensors = [(name, getattr(batch, name)) for name in ("query_starts", "context_lens", "block_tables")]
    if (prefixes := batch.prefixes) is not None:
        check_shape("members", prefixes.members, sequences)
        check_shape("shared", prefixes.shared, sequences)
        check_shape("starts", prefixes.starts, max(2, prefixes.starts.numel()))
        tensors += [(name, getattr(prefixes, name)) for name in ("members", "starts", "shared")]
    for name, tensor in tensors:
        if tensor.dtype != torch.int32 or tensor.device != device or tensor.stride(-1) != 1:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}; expected contiguous int32 on {device}")
