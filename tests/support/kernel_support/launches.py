"""Launches of every kernel as in serving: heads of a model of 8 billion parameters and of Gemma, small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from plimsoll_kernels.activation.kernel import launch_gated
from plimsoll_kernels.decode_tables.kernel import launch_decode_tables, launch_write_blocks
from plimsoll_kernels.grouped_product.kernel import launch_grouped_product
from plimsoll_kernels.latent_attention.kernel import launch_latent
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.decode import kernel as decode
from plimsoll_kernels.paged_attention.kernel import launch_write_cache
from plimsoll_kernels.paged_attention.prefill import kernel as prefill
from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_kernels.paged_attention.terms import ScoreTerms
from plimsoll_kernels.rms_norm.kernel import launch_rms_norm
from plimsoll_kernels.rotary.kernel import launch_rotary
from plimsoll_kernels.rotary_cache.kernel import launch_rotary_cache
from plimsoll_kernels.sampling.kernel import launch_sample
from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.params import RowParams

LLAMA = {"heads": 32, "kv_heads": 8, "size": 128}
GEMMA = {"heads": 4, "kv_heads": 1, "size": 256}
ODD = {"heads": 9, "kv_heads": 3, "size": 80}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BLOCKS, GROUPS = 64, 6
KERNELS = {
    "_decode",
    "_join",
    "_prefix",
    "_prefill",
    "_write_cache",
    "_rms_norm",
    "_rotary",
    "_rotary_cache",
    "_gated",
    "_tiles",
    "_plan",
    "_count",
    "_ends",
    "_collect",
    "_cut",
    "_draw",
    "_grouped_product",
    "_latent",
    "_join_latent",
    "_write_blocks",
    "_decode_tables",
}
"""All kernels that the launches below use."""


def _attention(
    shape: dict[str, int], dtype: torch.dtype, lengths: list[tuple[int, int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, PagedBatch]:
    """Return (out, query, keys, values, batch) of sequences of (rows, context)."""
    rows = sum(r for r, _ in lengths)
    query = torch.zeros(rows, shape["heads"], shape["size"], dtype=dtype)
    cache = torch.zeros(2, shape["kv_heads"], BLOCKS, 16, shape["size"], dtype=dtype)
    batch = PagedBatch.of([r for r, _ in lengths], [c for _, c in lengths], [[1] * BLOCKS for _ in lengths], "cpu")
    return torch.empty_like(query), query, cache[0], cache[1], batch


def _per_head(shape: dict[str, int], *, slopes: bool = False, sinks: bool = False, **more: Any) -> dict[str, Any]:
    there = {"slopes": slopes, "sinks": sinks}
    return {**more, **{name: torch.ones(shape["heads"]) for name, wanted in there.items() if wanted}}


def _decode(shape: dict[str, int], dtype: torch.dtype, splits: int, config: Any = None, **more: Any) -> None:
    terms = ScoreTerms(scale=0.1, **_per_head(shape, **more))
    decode.launch_decode(*_attention(shape, dtype, [(1, 500)] * 3), terms, splits=splits, config=config)


def _shared(shape: dict[str, int], dtype: torch.dtype, splits: int, **more: Any) -> None:
    terms = ScoreTerms(scale=0.1, **_per_head(shape, **more))
    out, query, keys, values, batch = _attention(shape, dtype, [(1, 500)] * 3)
    prefixes = PrefixTables.of(torch.zeros(2 * 3 + 9, dtype=torch.int32), 3)
    decode.launch_decode(out, query, keys, values, replace(batch, prefixes=prefixes), terms, splits=splits)


def _prefill(shape: dict[str, int], dtype: torch.dtype, config: Any = None, **more: Any) -> None:
    terms = ScoreTerms(scale=0.1, **_per_head(shape, **more))
    prefill.launch_prefill(*_attention(shape, dtype, [(100, 500), (1, 30)]), terms, config=config)


def _cache(shape: dict[str, int]) -> torch.Tensor:
    return torch.zeros(2, shape["kv_heads"], BLOCKS, 16, shape["size"], dtype=BF16)


def _write() -> None:
    key, value = torch.zeros(2, 3, LLAMA["kv_heads"], LLAMA["size"], dtype=BF16)
    keys, values = _cache(LLAMA)
    launch_write_cache(key, value, keys, values, torch.arange(3))


def _rotary_cache(shape: dict[str, int], *, norm: bool) -> None:
    count, size = shape["heads"] + 2 * shape["kv_heads"], shape["size"]
    weight = torch.ones(count - shape["kv_heads"], size) if norm else None
    heads, turns = torch.zeros(3, count, size, dtype=BF16), torch.ones(3, size // 2, dtype=BF16)
    keys, values = _cache(shape)
    launch_rotary_cache(heads, turns, turns, keys, values, torch.arange(3), weight, 1e-6)


def _norm(*, add: bool) -> None:
    x = torch.zeros(3, 1, 4096, dtype=BF16)
    launch_rms_norm(x, torch.ones_like(x) if add else None, torch.ones(4096), 1e-6)


def _latent(heads: int, size: int, dtype: torch.dtype, lengths: list[tuple[int, int]], splits: int | None) -> None:
    shape = {"heads": heads, "kv_heads": 1, "size": size}
    out, query, keys, _, batch = _attention(shape, dtype, lengths)
    launch_latent(out, query, keys[0], batch, scale=0.1, chunks=splits is None, splits=splits)


def _grouped(rows: int, outputs: int, inputs: int, dtype: torch.dtype, *, bias: bool = False) -> None:
    weights = torch.zeros(GROUPS, outputs, inputs, dtype=dtype)
    own = torch.zeros(GROUPS, outputs, dtype=dtype) if bias else None
    launch_grouped_product(torch.zeros(rows, inputs, dtype=dtype), weights, torch.zeros(GROUPS, dtype=torch.int32), own)


def _sample(masks: TokenMasks | None = None) -> None:
    whole, off, ones = torch.zeros(3), torch.zeros(3, dtype=torch.int32), torch.ones(3)
    launch_sample(torch.zeros(3, 32000), RowParams(ones, off, ones, whole), torch.zeros(3, dtype=torch.float64), masks)


def _sample_masked() -> None:
    _sample(TokenMasks(torch.zeros(3, dtype=torch.int32), torch.zeros(1, 1000, dtype=torch.int32)))


def _tables() -> None:
    positions, begins, firsts, places, written = torch.zeros(5, 3, dtype=torch.int64).unbind()
    blocks = torch.zeros(3 * BLOCKS, dtype=torch.int32)
    launch_write_blocks(blocks, places, written)
    launch_decode_tables(blocks, positions, begins, firsts, 16, BLOCKS)


LAUNCHES: dict[str, Callable[[], object]] = {
    "decode": lambda: _decode(LLAMA, BF16, 1),
    "decode split": lambda: _decode(LLAMA, BF16, 16),
    "decode gemma window": lambda: _decode(GEMMA, BF16, 4, window=512),
    "decode soft cap, half": lambda: _decode(GEMMA, F16, 2, softcap=50.0),
    "decode odd, float32": lambda: _decode(ODD, F32, 2),
    "decode slopes": lambda: _decode(ODD, BF16, 4, slopes=True),
    "decode sinks, window": lambda: _decode(LLAMA, BF16, 4, sinks=True, window=128),
    "decode chunk": lambda: _decode(LLAMA, BF16, 1, chunk=8192),
    "decode shared": lambda: _shared(LLAMA, BF16, 1),
    "decode shared, split": lambda: _shared(LLAMA, BF16, 16),
    "decode shared, gemma window": lambda: _shared(GEMMA, BF16, 4, window=512),
    "decode shared, soft cap, half": lambda: _shared(GEMMA, F16, 2, softcap=50.0),
    "decode shared, slopes, odd, float32": lambda: _shared(ODD, F32, 2, slopes=True),
    "decode shared, sinks, chunk": lambda: _shared(LLAMA, BF16, 4, sinks=True, chunk=8192),
    "decode shared, one head, 16 queries": lambda: _shared({"heads": 16, "kv_heads": 1, "size": 128}, BF16, 4),
    "prefill": lambda: _prefill(LLAMA, BF16),
    "prefill slopes": lambda: _prefill(ODD, BF16, slopes=True),
    "prefill sinks, window": lambda: _prefill(LLAMA, BF16, sinks=True, window=128),
    "prefill chunk": lambda: _prefill(LLAMA, BF16, chunk=8192),
    "prefill gemma window": lambda: _prefill(GEMMA, BF16, window=512),
    "prefill soft cap, half": lambda: _prefill(GEMMA, F16, softcap=50.0, window=512),
    "prefill odd, float32": lambda: _prefill(ODD, F32),
    "write cache": _write,
    "norm": lambda: _norm(add=False),
    "sum and norm": lambda: _norm(add=True),
    "rotary": lambda: launch_rotary(torch.zeros(3, 32, 128, dtype=BF16), *torch.ones(2, 3, 64, dtype=BF16)),
    "rotary and cache": lambda: _rotary_cache(LLAMA, norm=False),
    "norm, rotary and cache": lambda: _rotary_cache(GEMMA, norm=True),
    "silu": lambda: launch_gated(torch.zeros(3, 2 * 14336, dtype=BF16), "silu"),
    "sample": _sample,
    "sample masked": _sample_masked,
    "grouped, few rows": lambda: _grouped(8, 768, 2048, BF16),
    "grouped, many rows": lambda: _grouped(512, 768, 2048, BF16),
    "grouped, bias, odd, half": lambda: _grouped(8, 90, 100, F16, bias=True),
    "grouped, float32": lambda: _grouped(512, 768, 2048, F32),
    "latent decode": lambda: _latent(128, 576, BF16, [(1, 500)] * 3, 1),
    "latent decode split": lambda: _latent(128, 576, BF16, [(1, 500)] * 3, 16),
    "latent decode few heads, half": lambda: _latent(16, 576, F16, [(1, 500)] * 3, 4),
    "latent decode float32": lambda: _latent(40, 288, F32, [(1, 500)] * 3, 4),
    "latent chunk": lambda: _latent(128, 576, BF16, [(100, 500), (1, 30)], None),
    "latent chunk few heads, float32": lambda: _latent(16, 576, F32, [(100, 500), (1, 30)], None),
    "gelu": lambda: launch_gated(torch.zeros(3, 2 * 2048, dtype=BF16), "gelu_tanh"),
    "tables of decodes": _tables,
}

EVERYWHERE = {
    "decode split",
    "decode shared, split",
    "prefill",
    "write cache",
    "norm",
    "rotary",
    "norm, rotary and cache",
    "silu",
    "sample",
    "grouped, few rows",
    "grouped, many rows",
    "latent decode split",
    "latent chunk",
    "tables of decodes",
}
"""A launch or two of each kernel, for the targets after the first."""
