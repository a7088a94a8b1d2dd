"""Safetensors files, single or sharded. Headers are read and checked when opened, tensors on request."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.safetensors_header import entry_of, read_header
from plimsoll_runtime.weights.stored_tensor import StoredTensor, plain

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OTHERS = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
QUANTISED = {"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I8": torch.int8, "U8": torch.uint8}
"""Types of quantised matrices and their scales, in addition to FLOATS."""

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Dtype and shape of each tensor of a file."""

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class SafetensorsFiles:
    """The tensors of one or several files. Raises ModelError naming the file and the tensor.

    `kinds` are the accepted types by their names in headers. `dtypes` are the dtypes of all tensors.
    """

    def __init__(self, paths: Sequence[Path], kinds: Mapping[str, torch.dtype] = FLOATS) -> None:
        self._files: dict[str, _MappedFile] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        for path in paths:
            file = _MappedFile(path, kinds)
            for name, (dtype, shape) in file.layout.items():
                if name in self._files:
                    raise ModelError(f"{name} is in both {self._files[name].path.name} and {path.name}")
                self._files[name], self.dtypes[name], self.shapes[name] = file, dtype, shape

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor, whose numbers are a view of the mapped file (a copy if they are not aligned in it)."""
        return plain(self._files[name].tensor(name))


class _MappedFile:
    """One file, mapped by the safetensors package while this object or a tensor of it exists."""

    def __init__(self, path: Path, kinds: Mapping[str, torch.dtype]) -> None:
        self.path = path
        self.layout, self._size = _check_header(path, kinds)
        try:
            self._opened: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path.name} cannot be read: {error}") from error

    def tensor(self, name: str) -> Tensor:
        """Return a view of the file, or a copy if the numbers are not aligned in it. The file's pages leave this
        process's memory once no tensor refers to the view.

        Raises ModelError if the file was truncated since it was opened: reading beyond its end would be fatal.
        """
        try:
            if (size := self.path.stat().st_size) < self._size:
                raise OSError(f"the file had {self._size} bytes and has {size}")
            values: Tensor = self._opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path.name}: {name} cannot be read: {error}") from error
        if values.nbytes:
            first = values.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            length = values.data_ptr() + values.nbytes - first
            weakref.finalize(values.untyped_storage(), self._release, first, length).atexit = False
        # Tensor data may start at any byte, but dtypes need alignment.
        return values if values.data_ptr() % values.dtype.itemsize == 0 else values.clone()

    def _release(self, address: int, size: int) -> None:
        """Drop pages from this process's memory. As a finalizer, this method keeps the file mapped until it runs."""
        _madvise(address, size, mmap.MADV_DONTNEED)


def _check_header(path: Path, kinds: Mapping[str, torch.dtype]) -> tuple[Layout, int]:
    """Return the layout and the size of a file, after checking its header against itself and the size.

    `kinds` are the accepted types by their names in headers.
    """
    header, data = read_header(path)
    size = path.stat().st_size - data
    layout, places = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, start, end = entry_of(path, name, entry)
        if kind not in kinds:
            raise ModelError(f"{path.name}: {name} is stored as {kind}; only {', '.join(kinds)} are supported")
        if end - start != (needed := kinds[kind].itemsize * prod(shape)):
            raise ModelError(f"{path.name}: {name} has {end - start} bytes, but {kind} {list(shape)} needs {needed}")
        if end > size:
            raise ModelError(f"{path.name} is truncated: {name} ends at byte {end} of {size}; download it again")
        layout[name] = kinds[kind], shape
        places.append((data + start, data + end, name))
    _check_order(path, sorted(places), data, data + size)
    return layout, data + size


def _check_order(path: Path, places: Sequence[tuple[int, int, str]], at: int, end: int) -> None:
    """Raise ModelError if tensors (start, end, name) overlap or leave gaps, which the format forbids."""
    for start, stop, name in places:
        if start != at:
            raise ModelError(f"{path.name}: {name} begins at byte {start}, but the data before it end at byte {at}")
        at = stop
    if at != end:
        raise ModelError(f"{path.name} has {end} bytes, but its tensors end at byte {at}; download it again")
