"""Tuning paged attention over the cache that it will serve, before anybody is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.configs import DEFAULTS, PagedConfigs
from plimsoll_kernels.tuning.config import LaunchConfig
from plimsoll_kernels.tuning.key import TuningKey
from plimsoll_kernels.tuning.store import TuningStore
from plimsoll_kernels.tuning.tuner import device_milliseconds, tuned

CONTEXT = 4096
SEQUENCES = 32
CHUNK = 2048
Clock = Callable[[Callable[[], object]], float]
"""Milliseconds of some work."""


@dataclass(frozen=True, slots=True)
class TunedHeads:
    """What is tuned for: the queries of a layer, and how they attend."""

    heads: int
    scale: float
    window: int | None
    softcap: float | None


def tune_paged_attention(
    key_cache: Tensor, value_cache: Tensor, wanted: TunedHeads, store: TuningStore, clock: Clock = device_milliseconds
) -> PagedConfigs:
    """The fastest launches over these caches `[kv_heads, num_blocks, block_size, D]`, which are only read.

    Decodes are tried with `SEQUENCES` contexts of `CONTEXT` tokens, chunks with `CHUNK` rows that end one. A cache that
    does not hold a few such contexts is too small to be worth the time: it gets the defaults.
    """
    _, num_blocks, block_size, _ = key_cache.shape
    sequences = min(SEQUENCES, (num_blocks - 1) * block_size // CONTEXT)
    if sequences < 4:
        return DEFAULTS
    return PagedConfigs(
        decode=_tune_decode(key_cache, value_cache, wanted, store, clock, sequences),
        prefill=_tune_prefill(key_cache, value_cache, wanted, store, clock),
    )


def _tune_decode(
    keys: Tensor, values: Tensor, wanted: TunedHeads, store: TuningStore, clock: Clock, sequences: int
) -> LaunchConfig:
    from plimsoll_kernels.paged_attention.decode import kernel

    query, out = torch.zeros((2, sequences, wanted.heads, keys.shape[3]), dtype=keys.dtype, device=keys.device)
    batch = _batch(keys, [1] * sequences)

    def measure(config: LaunchConfig) -> float:
        return clock(
            lambda: kernel.launch_decode(
                out,
                query,
                keys,
                values,
                batch,
                scale=wanted.scale,
                window=wanted.window,
                softcap=wanted.softcap,
                config=config,
            )
        )

    candidates = kernel.candidates(keys.shape[3], wanted.heads // keys.shape[0], keys.element_size())
    return tuned(_key("decode", Path(kernel.__file__), keys, wanted), candidates, measure, store)


def _tune_prefill(keys: Tensor, values: Tensor, wanted: TunedHeads, store: TuningStore, clock: Clock) -> LaunchConfig:
    from plimsoll_kernels.paged_attention.prefill import kernel

    query, out = torch.zeros((2, CHUNK, wanted.heads, keys.shape[3]), dtype=keys.dtype, device=keys.device)
    batch = _batch(keys, [CHUNK])

    def measure(config: LaunchConfig) -> float:
        return clock(
            lambda: kernel.launch_prefill(
                out,
                query,
                keys,
                values,
                batch,
                scale=wanted.scale,
                window=wanted.window,
                softcap=wanted.softcap,
                config=config,
            )
        )

    candidates = kernel.candidates(keys.shape[3], wanted.heads // keys.shape[0], keys.element_size())
    return tuned(_key("prefill", Path(kernel.__file__), keys, wanted), candidates, measure, store)


def _batch(keys: Tensor, rows: list[int]) -> PagedBatch:
    """Sequences whose blocks lie all over the cache, none in two of them."""
    _, num_blocks, block_size, _ = keys.shape
    width = -(-CONTEXT // block_size)
    blocks = 1 + torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0))[: len(rows) * width]
    tables = blocks.view(len(rows), width).tolist()
    return PagedBatch.of(rows, [CONTEXT] * len(rows), tables, keys.device)


def _key(kernel: str, code: Path, keys: Tensor, wanted: TunedHeads) -> TuningKey:
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
