"""The grouped product in Triton: one launch for all groups, whose sizes are only on the device.

A program computes a tile of one group's rows and some of its outputs. It finds its group from the groups' ends: the
host starts as many tiles as there can be, and superfluous ones return immediately. So the host never waits for the
device, and a CUDA graph can contain the launch. The tiles of a group are consecutive, and share its matrix in the
cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.tuning.config import LaunchConfig

LINE = 128
"""Bytes of a row and of an output's weights that a program reads at a time: a cache line."""
FEW = 16
"""The average rows of a group up to which reading its matrix dominates the time."""


@triton.jit
def _tile_of(ends, tile, GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, BLOCK_M: tl.constexpr):
    """(group of a tile, its first row, end of the group's rows); the group is GROUPS if there is no such tile."""
    group = tl.arange(0, GROUPS_PADDED)
    inside = group < GROUPS
    end = tl.load(ends + group, mask=inside, other=0)
    begin = tl.load(ends + group - 1, mask=inside & (group > 0), other=0)
    tiles = tl.where(inside, tl.cdiv(end - begin, BLOCK_M), 0)
    after = tl.cumsum(tiles, 0)
    found = tl.sum((inside & (after <= tile)).to(tl.int32), 0)
    own = group == found
    first = tl.sum(tl.where(own, begin + (tile - (after - tiles)) * BLOCK_M, 0), 0)
    return found, first, tl.sum(tl.where(own, end, 0), 0)


@triton.jit
def _weights_of(weights, output, k, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK_K: tl.constexpr, like):
    """[BLOCK_K, BLOCK_N] of one matrix, converted to the dtype `like`."""
    inside = (output < OUTPUTS)[None, :]
    if INPUTS % BLOCK_K:
        inside = inside & (k < INPUTS)[:, None]
    return tl.load(weights + output.to(tl.int64)[None, :] * INPUTS + k[:, None], mask=inside, other=0.0).to(like)


@triton.jit
def _grouped_product(
    out,
    rows,
    weights,
    bias,
    ends,
    row_stride,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    group, first, end = _tile_of(ends, tl.program_id(0), GROUPS, GROUPS_PADDED, BLOCK_M)
    if group >= GROUPS:
        return
    row = first + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    source = rows + row.to(tl.int64)[:, None] * row_stride
    matrix = weights + group.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        readable = (row < end)[:, None]
        if INPUTS % BLOCK_K:
            readable = readable & (k < INPUTS)[None, :]
        x = tl.load(source + k[None, :], mask=readable, other=0.0)
        w = _weights_of(matrix, output, k, OUTPUTS, INPUTS, BLOCK_K, x.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    if BIAS:
        own = tl.load(bias + group.to(tl.int64) * OUTPUTS + output, mask=output < OUTPUTS, other=0.0)
        acc += own.to(tl.float32)[None, :]
    target = out + row.to(tl.int64)[:, None] * OUTPUTS + output[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(row < end)[:, None] & (output < OUTPUTS)[None, :])


def config_for(rows: int, groups: int) -> LaunchConfig:
    """Return a configuration that fits every device since sm_80. Not tuned: it depends on the average rows of groups.

    With few rows, reading matrices dominates: then it is the smallest tile that matrix units accept, with more stages.
    """
    if rows <= FEW * groups:
        return LaunchConfig(block_m=16, block_n=64, num_warps=4, num_stages=4)
    return LaunchConfig(block_m=64, block_n=128, num_warps=4, num_stages=3)


def most_tiles(rows: int, groups: int, block_m: int) -> int:
    """Return the most tiles of `rows` rows: each group with rows has at most one tile that is not full."""
    return rows // block_m + min(rows, groups)


def launch_grouped_product(
    rows: Tensor, weights: Tensor, ends: Tensor, bias: Tensor | None, config: LaunchConfig | None = None
) -> Tensor:
    """Launch the product of rows `[R, I]`, contiguous each, and contiguous weights `[G, O, I]` -> contiguous `[R, O]`.

    `op` has checked the arguments.
    """
    count, (groups, outputs, inputs) = len(rows), weights.shape
    out = torch.empty((count, outputs), dtype=rows.dtype, device=rows.device)
    if count == 0:
        return out
    chosen = config or config_for(count, groups)
    grid = (most_tiles(count, groups, chosen.block_m), triton.cdiv(outputs, chosen.block_n))
    _grouped_product[grid](
        out,
        rows,
        weights,
        out if bias is None else bias.contiguous(),
        ends,
        rows.stride(0),
        GROUPS=groups,
        GROUPS_PADDED=triton.next_power_of_2(groups),
        OUTPUTS=outputs,
        INPUTS=inputs,
        BIAS=bias is not None,
        BLOCK_M=chosen.block_m,
        BLOCK_N=chosen.block_n,
        BLOCK_K=LINE // rows.element_size(),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        enable_fp_fusion=True,
    )
    return out
