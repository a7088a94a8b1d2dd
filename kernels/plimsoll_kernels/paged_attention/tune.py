"""Tunes paged attention over the cache that it will serve, before serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.configs import DEFAULTS, PagedConfigs
from plimsoll_kernels.paged_attention.terms import ScoreTerms
from plimsoll_kernels.tuning.config import LaunchConfig
from plimsoll_kernels.tuning.key import TuningKey
from plimsoll_kernels.tuning.store import TuningStore
from plimsoll_kernels.tuning.tuner import device_milliseconds, tuned

CONTEXT = 4096
SEQUENCES = 32
CHUNK = 2048
Clock = Callable[[Callable[[], object]], float]
"""Returns the milliseconds of some work."""


@dataclass(frozen=True, slots=True)
class TunedHeads:
    """The properties of a layer for which attention is tuned: its number of query heads, scale, window and soft cap."""

    heads: int
    scale: float
    window: int | None
    softcap: float | None


def tune_paged_attention(
    key_cache: Tensor, value_cache: Tensor, wanted: TunedHeads, store: TuningStore, clock: Clock = device_milliseconds
) -> PagedConfigs:
    """Return the fastest configurations for these caches `[kv_heads, num_blocks, block_size, D]`, which are only read.

    Decodes are measured with `SEQUENCES` contexts of `CONTEXT` tokens, chunks with `CHUNK` rows at the end of one. A
    cache that does not hold four such contexts gets the defaults, because tuning is not worth its time.
    """
    _, num_blocks, block_size, _ = key_cache.shape
    sequences = min(SEQUENCES, (num_blocks - 1) * block_size // CONTEXT)
    if sequences < 4:
        return DEFAULTS
    from plimsoll_kernels.paged_attention.decode import kernel as decode
    from plimsoll_kernels.paged_attention.prefill import kernel as prefill
    from plimsoll_kernels.paged_attention.tile import kernel as tile

    def tune(kind: str, rows: list[int], kernel: ModuleType, launch: Callable[..., None]) -> LaunchConfig:
        shape = (2, sum(rows), wanted.heads, key_cache.shape[3])
        query, out = torch.zeros(shape, dtype=key_cache.dtype, device=key_cache.device)
        batch = _batch(key_cache, rows)
        terms = ScoreTerms(wanted.scale, wanted.window, wanted.softcap)

        def measure(config: LaunchConfig) -> float:
            return clock(lambda: launch(out, query, key_cache, value_cache, batch, terms, config=config))

        group = wanted.heads // key_cache.shape[0]
        candidates = kernel.candidates(key_cache.shape[3], group, key_cache.element_size())
        code = [Path(str(part.__file__)) for part in (kernel, tile)]
        return tuned(_key(kind, code, key_cache, wanted), candidates, measure, store)

    return PagedConfigs(
        decode=tune("decode", [1] * sequences, decode, decode.launch_decode),
        prefill=tune("prefill", [CHUNK], prefill, prefill.launch_prefill),
    )


def _batch(keys: Tensor, rows: list[int]) -> PagedBatch:
    """Return sequences of CONTEXT tokens, with these numbers of rows, whose blocks are scattered over the cache and not
    shared.
    """
    _, num_blocks, block_size, _ = keys.shape
    width = -(-CONTEXT // block_size)
    blocks = 1 + torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0))[: len(rows) * width]
    tables = blocks.view(len(rows), width).tolist()
    return PagedBatch.of(rows, [CONTEXT] * len(rows), tables, keys.device)


def _key(kernel: str, code: Sequence[Path], keys: Tensor, wanted: TunedHeads) -> TuningKey:
    shape: dict[str, int | str] = {
        "heads": wanted.heads,
        "kv_heads": keys.shape[0],
        "head_dim": keys.shape[3],
        "block_size": keys.shape[2],
        "dtype": str(keys.dtype),
        "window": wanted.window or 0,
        "softcap": int(wanted.softcap is not None),
    }
    return TuningKey.of(kernel, code, keys.device, shape)
