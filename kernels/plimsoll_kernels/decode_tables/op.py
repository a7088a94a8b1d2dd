"""Block tables of decodes: checks arguments, then runs kernel or reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.decode_tables.reference import decode_tables_reference, write_blocks_reference
from plimsoll_kernels.decode_tables.tables import DecodeTables
from plimsoll_kernels.dispatch import Implementation, check_shape, use_triton


def write_blocks(blocks: Tensor, places: Tensor, written: Tensor, *, implementation: Implementation = "auto") -> None:
    """Write the block numbers `written`, int64 `[S]`, into blocks, int32 `[N]`, at places, int64 `[S]`.

    Raises ValueError for wrong shapes, dtypes and devices. Values are not checked, because reading them back would
    stall a GPU: places must be valid, and equal places must get equal numbers.
    """
    _check(blocks, places.shape[0], places=places, written=written)
    if not use_triton(implementation, blocks):
        write_blocks_reference(blocks, places, written)
        return
    from plimsoll_kernels.decode_tables.kernel import launch_write_blocks

    launch_write_blocks(blocks, places, written)


def decode_tables(
    blocks: Tensor,
    positions: Tensor,
    begins: Tensor,
    firsts: Tensor,
    *,
    block_size: int,
    width: int,
    implementation: Implementation = "auto",
) -> DecodeTables:
    """Return the tables of S decodes as rows, their context lengths, and the cells of their keys and values.

    blocks int32 `[N]`, positions, begins and firsts int64 `[S]`: see the reference for the terms. Only the blocks that
    a context needs are copied. Raises ValueError for wrong shapes, dtypes and devices. Values are not checked, because
    reading them back would stall a GPU.
    """
    if block_size < 1 or width < 1:
        raise ValueError(f"width is {width} and block_size {block_size}; both must be at least 1")
    _check(blocks, positions.shape[0], positions=positions, begins=begins, firsts=firsts)
    arguments = (blocks, positions, begins, firsts, block_size, width)
    if not use_triton(implementation, blocks):
        return decode_tables_reference(*arguments)
    from plimsoll_kernels.decode_tables.kernel import launch_decode_tables

    return launch_decode_tables(*arguments)


def _check(blocks: Tensor, count: int, **numbers: Tensor) -> None:
    if blocks.dim() != 1 or blocks.dtype != torch.int32 or not blocks.is_contiguous():
        raise ValueError(f"blocks is {blocks.dtype} {list(blocks.shape)}; expected contiguous int32 [N]")
    for name, tensor in numbers.items():
        check_shape(name, tensor, count)
        if tensor.dtype != torch.int64 or tensor.device != blocks.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}; expected contiguous int64 on {blocks.device}"
            )
