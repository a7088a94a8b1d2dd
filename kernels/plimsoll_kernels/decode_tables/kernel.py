"""Block tables in Triton: one launch writes changes, the next copies as much of each table as its context needs.

There are two launches because any program of the second may read what any program of the first has written. A step's
numbers are rows of one tensor, so that their addresses and sizes follow from the batch: neither kernel is specialised
for them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.decode_tables.tables import DecodeTables

TILE = 256
"""Entries that a program writes."""

COLUMNS = 1024
"""Columns of a program: most contexts need one program; 131,072 tokens in blocks of 16 need eight."""


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["places", "written"])
def _write_blocks(blocks, places, written, count, TILE: tl.constexpr):
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = entry < count
    place = tl.load(places + entry, mask=inside, other=0)
    block = tl.load(written + entry, mask=inside, other=0)
    tl.store(blocks + place, block.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["positions", "begins", "firsts"])
def _decode_tables(
    tables,
    context_lens,
    cells,
    blocks,
    positions,
    begins,
    firsts,
    width,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * COLUMNS
    position = tl.load(positions + row)
    first = tl.load(firsts + row)
    last = position // BLOCK_SIZE - first
    if start > last:
        return
    table = blocks + tl.load(begins + row)
    column = start + tl.arange(0, COLUMNS)
    needed = (column <= last) & (column < width)
    tl.store(tables + row * width + column, tl.load(table + column, mask=needed, other=0), mask=needed)
    if start == 0:
        own = tl.load(table + last).to(tl.int64)
        tl.store(context_lens + row, (position + 1 - first * BLOCK_SIZE).to(tl.int32))
        tl.store(cells + row, own * BLOCK_SIZE + position % BLOCK_SIZE)


def launch_write_blocks(blocks: Tensor, places: Tensor, written: Tensor) -> None:
    """Launch `op.write_blocks` with checked arguments."""
    count = places.shape[0]
    _write_blocks[(triton.cdiv(count, TILE),)](
        blocks, places, written, count, TILE=TILE, num_warps=4, enable_fp_fusion=True
    )


def launch_decode_tables(
    blocks: Tensor, positions: Tensor, begins: Tensor, firsts: Tensor, block_size: int, width: int
) -> DecodeTables:
    """Launch `op.decode_tables` with checked arguments."""
    rows, device = positions.shape[0], blocks.device
    made = DecodeTables(
        block_tables=torch.empty((rows, width), dtype=torch.int32, device=device),
        context_lens=torch.empty(rows, dtype=torch.int32, device=device),
        cells=torch.empty(rows, dtype=torch.int64, device=device),
    )
    _decode_tables[(rows, triton.cdiv(width, COLUMNS))](
        *made,
        blocks,
        positions,
        begins,
        firsts,
        width,
        BLOCK_SIZE=block_size,
        COLUMNS=COLUMNS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return made
