"""Quantised blocks of GGUF tensors, and the mapped GGUF file."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.gguf.metadata import GgufTensor, read_metadata
from plimsoll_runtime.weights.stored_tensor import Parts, in_pieces


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """The scheme of a type (see weights.stored_tensor): the part "blocks" is uint8 [rows, bytes of a row].

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


class MappedFile:
    """One file. Raises as `read_metadata` does."""

    def __init__(self, path: Path) -> None:
        self.metadata = read_metadata(path)
        self._name = path.name
        with opened(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # nobody writes there, as torch fears
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def checked(self, name: str, tensor: GgufTensor) -> GGMLQuantizationType:
        """A tensor's type. Raises ModelError, by `name`, for one that cannot be decoded, or is not all there."""
        kind = kind_of(tensor.kind)
        if kind is None:
            raise ModelError(f"{self._name}: {name} is of type {kind_name(tensor.kind)}, which cannot be decoded")
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        if not tensor.shape or prod(tensor.shape) == 0 or tensor.shape[-1] % block:
            raise ModelError(
                f"{self._name}: {name} has the shape {list(tensor.shape)}, which {kind.name} cannot"
                f" hold: its rows are stored in blocks of {block}"
            )
        end = tensor.offset + stored_bytes(kind, tensor.shape)
        if end > self._bytes.numel():
            raise ModelError(f"{self._name} is cut short: {name} ends at byte {end}; fetch it again")
        return kind

    def blocks(self, tensor: GgufTensor, kind: GGMLQuantizationType) -> tuple[Tensor, Callable[[], object]]:
        """The bytes of a tensor that was checked, a row for each of its rows; and what gives back their pages."""
        size = stored_bytes(kind, tensor.shape)
        found = self._bytes[tensor.offset : tensor.offset + size].view(*(tensor.shape[:-1] or (1,)), -1)
        return found, partial(self._release, tensor.offset, size)

    def _release(self, offset: int, size: int) -> None:
        """Pages of the file that were read stay in the kernel's cache, but no longer count as this process's."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)
