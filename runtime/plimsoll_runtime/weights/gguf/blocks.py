"""GGUF's types of tensors: rows of blocks, of so many bytes for so many numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from plimsoll_runtime.weights.pieces import in_pieces
from plimsoll_runtime.weights.stored import Parts


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """The scheme of a type (see weights.stored): the part "blocks" is uint8 [rows, bytes of a row].

    Of several matrices in one it is [matrices, rows, bytes of a row], and its `rows` are matrices.
    """

    kind: GGMLQuantizationType

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: decoded piece by piece into memory of its own."""
        blocks = parts["blocks"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: self._decoded(blocks[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {"blocks": parts["blocks"][first:last]}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: blocks are not cut."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        if first % block or last % block:
            raise ValueError(f"columns {first} to {last}: {self.kind.name} has blocks of {block} columns")
        return {"blocks": parts["blocks"][..., first // block * size : last // block * size]}

    def _decoded(self, blocks: Tensor) -> Tensor:
        """float32, or bfloat16 where that is what they are."""
        if self.kind is GGMLQuantizationType.BF16:
            return blocks.contiguous().view(torch.bfloat16)
        return torch.from_numpy(gguf.dequantize(np.ascontiguousarray(blocks.numpy()), self.kind))


def kind_of(number: int) -> GGMLQuantizationType | None:
    """The type with this number, if there is one that can be decoded."""
    return GGMLQuantizationType(number) if _can_decode(number) else None


def kind_name(number: int) -> str:
    """What llama.cpp calls it."""
    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    return known.get(number, f"{number} (unknown)")


def stored_bytes(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """What a tensor takes in the file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return prod(shape) // block * size


@cache
def _can_decode(number: int) -> bool:
    """Whether the gguf package can decode a type; it says so only when tried."""
    try:
        known = GGMLQuantizationType(number)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[known][1]), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True
