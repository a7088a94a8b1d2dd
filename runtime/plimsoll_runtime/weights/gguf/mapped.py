"""A GGUF file that is mapped: its metadata, and the bytes of its tensors."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.gguf.blocks import kind_name, kind_of, stored_bytes
from plimsoll_runtime.weights.gguf.metadata import GgufTensor, read_metadata


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
