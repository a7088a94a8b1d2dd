"""`python -m gpu.small_ops NAME`: one small case of an op's Triton kernels on the device, compared with its reference.

Sizes are odd, so that every tile exceeds an edge. Exits with 1 if the numbers differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.decode_tables.op import decode_tables, write_blocks
from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.grouped_product.op import grouped_product
from plimsoll_kernels.latent_attention.op import latent_attention
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import paged_attention, write_cache
from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_kernels.rms_norm.op import add_rms_norm, rms_norm
from plimsoll_kernels.rotary.op import rotary
from plimsoll_kernels.rotary_cache.op import rotary_cache
from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams

TOLERANCE = 1e-4
"""Largest allowed difference in float32, if products do not round to TF32."""
HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 24, 8
DECODES, CHUNKS = [(1, 19), (1, 3)], [(5, 21), (7, 7)]

Op = Callable[[torch.device, Implementation], Tensor]


def _random(device: torch.device, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(device)


def _batch(lengths: list[tuple[int, int]], device: torch.device) -> tuple[PagedBatch, int, int]:
    """Return a batch of sequences with these (rows, context tokens), the sum of their rows, and the number of blocks
    that their cache needs.
    """
    tables, free = [], 1
    for _, context in lengths:
        count = -(-context // BLOCK)
        tables.append(list(range(free + count - 1, free - 1, -1)))
        free += count
    rows = [rows for rows, _ in lengths]
    return PagedBatch.of(rows, [context for _, context in lengths], tables, device), sum(rows), free


def _attention(lengths: list[tuple[int, int]], device: torch.device, implementation: Implementation) -> Tensor:
    batch, rows, blocks = _batch(lengths, device)
    caches = _random(device, 2, KV_HEADS, blocks, BLOCK, SIZE)
    query = _random(device, rows, HEADS, SIZE)
    return paged_attention(query, caches[0], caches[1], batch, scale=0.2, window=11, implementation=implementation)


def _shared(device: torch.device, implementation: Implementation) -> Tensor:
    """Decode four sequences: three start with the same two blocks (the window of one begins within them), the other one
    shares no block.
    """
    tables = [[5, 2, 7], [1], [5, 2, 3, 4], [5, 2, 6]]
    batch = PagedBatch.of([1] * 4, [17, 3, 29, 22], tables, device)
    numbers = [0, 2, 3, 0, 16, 0, 16, 16, 0, 3, 3]
    prefixes = PrefixTables.of(torch.tensor(numbers, dtype=torch.int32, device=device), 4)
    caches, query = _random(device, 2, KV_HEADS, 8, BLOCK, SIZE), _random(device, 4, HEADS, SIZE)
    batch = replace(batch, prefixes=prefixes)
    return paged_attention(query, caches[0], caches[1], batch, scale=0.2, window=25, implementation=implementation)


def _latent(lengths: list[tuple[int, int]], device: torch.device, implementation: Implementation) -> Tensor:
    batch, rows, blocks = _batch(lengths, device)
    cache, query = _random(device, blocks, BLOCK, 48), _random(device, rows, HEADS, 48)
    return latent_attention(query, cache, batch, scale=0.2, implementation=implementation)


def _write_cache(device: torch.device, implementation: Implementation) -> Tensor:
    rows = _random(device, 2, 5, KV_HEADS, SIZE)
    caches = torch.zeros(2, KV_HEADS, 2, BLOCK, SIZE, device=device)
    cells = torch.tensor([3, 15, 0, 9, 8], device=device)
    write_cache(rows[0], rows[1], caches[0], caches[1], cells, implementation=implementation)
    return caches


def _rotary_cache(device: torch.device, implementation: Implementation) -> Tensor:
    heads = _random(device, 5, HEADS + 2 * KV_HEADS, SIZE)
    caches = torch.zeros(2, KV_HEADS, 2, BLOCK, SIZE, device=device)
    cells, norm = torch.tensor([3, 15, 0, 9, 8], device=device), _random(device, HEADS + KV_HEADS, SIZE)
    cos, sin = _random(device, 2, 5, SIZE // 2)
    query = rotary_cache(
        heads, cos, sin, caches[0], caches[1], cells, norm=norm, eps=1e-6, implementation=implementation
    )
    return torch.cat([query.flatten(), caches.flatten()])


def _rms_norm(device: torch.device, implementation: Implementation) -> Tensor:
    x, weight = _random(device, 5, 77), _random(device, 77)
    alone = rms_norm(x, weight, 1e-6, implementation=implementation)
    return torch.cat([alone, *add_rms_norm(x, x + 1, weight, 1e-6, implementation=implementation)])


def _rotary(device: torch.device, implementation: Implementation) -> Tensor:
    cos, sin = _random(device, 2, 5, 8)
    return rotary(_random(device, 5, HEADS, SIZE), cos, sin, implementation=implementation)


def _gated(device: torch.device, implementation: Implementation) -> Tensor:
    return gated(_random(device, 5, 2 * 77), "silu", implementation=implementation)


def _grouped_product(device: torch.device, implementation: Implementation) -> Tensor:
    ends = torch.tensor([3, 3, 9], dtype=torch.int32, device=device)
    rows, weights, bias = _random(device, 9, 40), _random(device, 3, 21, 40), _random(device, 3, 21)
    return grouped_product(rows, weights, ends, bias, implementation=implementation)


def _decode_tables(device: torch.device, implementation: Implementation) -> Tensor:
    """Write a new block for each of three decodes, then make their block tables. One decode has freed the two blocks
    before its window; a fourth row is padding.
    """
    columns, width = 7, 5
    kept = (torch.arange(4 * columns, dtype=torch.int32, device=device) * 5 + 3) % 23
    places, written = torch.tensor([[3, 12, 20, 21], [9, 8, 7, 0]], device=device).unbind()
    numbers = [[3 * BLOCK + 1, 6 * BLOCK, 2, 0], [0, 8, 20, 21], [0, 2, 0, 0]]
    positions, begins, firsts = torch.tensor(numbers, device=device).unbind()
    write_blocks(kept, places, written, implementation=implementation)
    made = decode_tables(kept, positions, begins, firsts, block_size=BLOCK, width=width, implementation=implementation)
    needed = torch.arange(width, device=device) * BLOCK < made.context_lens[:, None]
    tables = torch.where(needed, made.block_tables, 0)
    return torch.cat([each.flatten().float() for each in (kept, tables, made.context_lens, made.cells)])


def _sample(masked: bool, device: torch.device, implementation: Implementation) -> Tensor:
    rows, vocab = 3, 1003
    params = RowParams(
        temperature=torch.tensor([0.0, 0.9, 1.3], device=device),
        top_k=torch.tensor([0, 40, 0], dtype=torch.int32, device=device),
        top_p=torch.tensor([1.0, 0.9, 0.7], device=device),
        min_p=torch.tensor([0.0, 0.0, 0.05], device=device),
    )
    masks = None
    if masked:
        bits = torch.full((1, -(-vocab // 32)), 0x55555555, dtype=torch.int32, device=device)
        masks = TokenMasks(torch.tensor([-1, 0, 0], dtype=torch.int32, device=device), bits)
    uniform = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64, device=device)
    found = sample(_random(device, rows, vocab) * 4, params, uniform, masks, implementation=implementation)
    return torch.cat([each.float() for each in found])


OPS: Mapping[str, Op] = {
    "decode": partial(_attention, DECODES),
    "prefill": partial(_attention, CHUNKS),
    "decode_shared": _shared,
    "mixed": partial(_attention, DECODES + CHUNKS),
    "write_cache": _write_cache,
    "rms_norm": _rms_norm,
    "rotary": _rotary,
    "rotary_cache": _rotary_cache,
    "gated": _gated,
    "grouped_product": _grouped_product,
    "latent_decode": partial(_latent, DECODES),
    "latent_prefill": partial(_latent, CHUNKS),
    "decode_tables": _decode_tables,
    "sample": partial(_sample, False),
    "sample_masked": partial(_sample, True),
}
"""All ops that the runtime launches on a GPU."""


def difference(name: str, device: torch.device) -> float:
    """Return the largest difference between an op's kernels and its reference on the device; NaN if either has one."""
    ours, reference = (OPS[name](device, implementation) for implementation in ("triton", "reference"))
    return float((ours - reference).abs().max())


def main() -> int:
    """Run a case and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=OPS)
    name = parser.parse_args().name
    found = difference(name, torch.device("cuda"))
    torch.cuda.synchronize()
    print(f"{name}: differs from the reference by {found:.2g}")
    # This form makes NaN fail.
    return 0 if found <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
