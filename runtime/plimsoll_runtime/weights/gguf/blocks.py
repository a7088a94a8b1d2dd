"""GGUF block types as a tensor scheme, and access to a mapped GGUF file."""

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
    """Scheme of a GGUF type (see weights.stored_tensor). Its component "blocks" is uint8 [rows, bytes of a row].

    For a stack of matrices it is [matrices, rows, bytes of a row], and `rows` selects matrices.
    """

    kind: GGMLQuantizationType

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Decode the blocks in pieces into a new tensor."""
        blocks = parts["blocks"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: self._decoded(blocks[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return {"blocks": parts["blocks"][first:last]}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the blocks of some columns. Raises ValueError if a block would be cut."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        if first % block or last % block:
            raise ValueError(f"columns {first} to {last}: {self.kind.name} has blocks of {block} columns")
        return {"blocks": parts["blocks"][..., first // block * size : last // block * size]}

    def _decoded(self, blocks: Tensor) -> Tensor:
        """Return the numbers as bfloat16 if the type is BF16, else as float32."""
        if self.kind is GGMLQuantizationType.BF16:
            return blocks.contiguous().view(torch.bfloat16)
        return torch.from_numpy(gguf.dequantize(np.ascontiguousarray(blocks.numpy()), self.kind))


def kind_of(number: int) -> GGMLQuantizationType | None:
    """Return the GGUF type of a number, or None if the gguf package cannot decode it."""
    return GGMLQuantizationType(number) if _can_decode(number) else None


def kind_name(number: int) -> str:
    """Return llama.cpp's name of a type."""
    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    return known.get(number, f"{number} (unknown)")


def stored_bytes(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in the file, in bytes."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return prod(shape) // block * size


@cache
def _can_decode(number: int) -> bool:
    """Return whether the gguf package can decode a type. The package has no query for this, so decode one block."""
    try:
        known = GGMLQuantizationType(number)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[known][1]), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True


class MappedFile:
    """A GGUF file mapped into memory. The constructor raises as `read_metadata` does."""

    def __init__(self, path: Path) -> None:
        self.metadata = read_metadata(path)
        self._name = path.name
        with opened(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the mapping is read-only, which torch warns about
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def checked(self, name: str, tensor: GgufTensor) -> GGMLQuantizationType:
        """Return a tensor's type. Raises ModelError if the type cannot be decoded or the file does not contain all its
        bytes.
        """
        kind = kind_of(tensor.kind)
        if kind is None:
            raise ModelError(f"{self._name}: {name} has the type {kind_name(tensor.kind)}, which is not supported")
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        if not tensor.shape or prod(tensor.shape) == 0 or tensor.shape[-1] % block:
            raise ModelError(
                f"{self._name}: {name} has the shape {list(tensor.shape)}, which {kind.name} cannot"
                f" store: a row must be a multiple of {block} numbers"
            )
        end = tensor.offset + stored_bytes(kind, tensor.shape)
        if end > self._bytes.numel():
            raise ModelError(
                f"{self._name} is truncated: {name} ends at byte {end}, beyond the end of the file; download it again"
            )
        return kind

    def blocks(self, tensor: GgufTensor, kind: GGMLQuantizationType) -> tuple[Tensor, Callable[[], object]]:
        """Return the bytes of a checked tensor [..., bytes of a row], and a function that releases their pages."""
        size = stored_bytes(kind, tensor.shape)
        found = self._bytes[tensor.offset : tensor.offset + size].view(*(tensor.shape[:-1] or (1,)), -1)
        return found, partial(self._release, tensor.offset, size)

    def _release(self, offset: int, size: int) -> None:
        """Drop pages from this process's memory. They stay in the kernel's page cache."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)
