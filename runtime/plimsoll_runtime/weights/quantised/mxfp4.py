"""MXFP4 (OCP Microscaling Formats, 2023): numbers of four bits, of which 32 share an exponent of eight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.weights.pieces import in_pieces
from plimsoll_runtime.weights.stored import Parts

BLOCK, BYTES = 32, 16
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)])
_PAIRS = torch.stack([_NUMBERS.repeat(16), _NUMBERS.repeat_interleave(16)], dim=1)
"""Both numbers of each byte, that of its lower bits first: [256, 2]."""
_SCALES = torch.tensor([*(2.0 ** (exponent - 127) for exponent in range(255)), torch.nan])


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Parts "blocks" uint8 [..., rows, blocks, 16] and "exponents" uint8 [..., rows, blocks]."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: piece by piece. The numbers are exact in bfloat16 and in float32."""
        blocks, exponents = parts["blocks"].flatten(0, -3), parts["exponents"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: _numbers(blocks[first:last], exponents[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: blocks are not cut."""
        if first % BLOCK or last % BLOCK:
            raise ValueError(f"columns {first} to {last}: MXFP4 has blocks of {BLOCK} columns")
        first, last = first // BLOCK, last // BLOCK
        return {"blocks": parts["blocks"][..., first:last, :], "exponents": parts["exponents"][..., first:last]}


def exponential(exponents: Tensor) -> Tensor:
    """Scales in float32, of exponents as the format stores them (E8M0)."""
    return _SCALES[exponents.int()]


def _numbers(blocks: Tensor, exponents: Tensor) -> Tensor:
    """[rows, columns] in float32."""
    found = _PAIRS[blocks.int()].flatten(-2)
    return found.mul_(exponential(exponents)[..., None]).flatten(1)
