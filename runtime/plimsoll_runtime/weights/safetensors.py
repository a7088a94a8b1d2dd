"""Safetensors files, single or sharded. Headers are read and checked when opened, tensors on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
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


@dataclass(frozen=True, slots=True)
class Lying:
    """Position of a tensor, in bytes of its file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFiles:
    """The tensors of one or several files. Raises ModelError naming the file and the tensor.

    `kinds` are the accepted types by their names in headers. `dtypes` are the dtypes of all tensors.
    """

    def __init__(self, paths: Sequence[Path], kinds: Mapping[str, torch.dtype] = FLOATS) -> None:
        self._lie: dict[str, Lying] = {}
        for path in paths:
            for name, lying in _check_header(path, kinds).items():
                if name in self._lie:
                    raise ModelError(f"{name} is in both {self._lie[name].path.name} and {path.name}")
                self._lie[name] = lying
        self.shapes: dict[str, tuple[int, ...]] = {name: lying.shape for name, lying in self._lie.items()}
        self.dtypes: dict[str, torch.dtype] = {name: lying.dtype for name, lying in self._lie.items()}

    def stored(self, name: str) -> StoredTensor:
        """Return a view of the file, which is mapped again for each call."""
        lying = self._lie[name]
        try:
            return plain(_mapped(lying))
        except (RuntimeError, OSError) as error:
            raise ModelError(f"{lying.path.name}: {name} cannot be read: {error}") from error


def _mapped(lying: Lying) -> Tensor:
    """Return a view of the file, which stays mapped while the view exists. Raises RuntimeError if the file is too
    short.
    """
    if lying.start == lying.end:
        return torch.empty(lying.shape, dtype=lying.dtype)
    whole = torch.from_file(str(lying.path), shared=False, size=lying.end, dtype=torch.uint8)
    values = whole[lying.start :]
    # Tensor data may start at any byte, but dtypes need alignment.
    aligned = values if values.data_ptr() % lying.dtype.itemsize == 0 else values.clone()
    return aligned.view(lying.dtype).view(lying.shape)


def _check_header(path: Path, kinds: Mapping[str, torch.dtype]) -> dict[str, Lying]:
    """Return the position of each tensor of a file, after checking the header against itself and the file size.

    `kinds` are the accepted types by their names in headers.
    """
    header, data = read_header(path)
    size = path.stat().st_size - data
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, start, end = entry_of(path, name, entry)
        if kind not in kinds:
            raise ModelError(f"{path.name}: {name} is stored as {kind}; only {', '.join(kinds)} are supported")
        if end - start != kinds[kind].itemsize * prod(shape):
            raise ModelError(
                f"{path.name}: {name} has {end - start} bytes, but {kind} {list(shape)} needs "
                f"{kinds[kind].itemsize * prod(shape)}"
            )
        if end > size:
            raise ModelError(f"{path.name} is truncated: {name} ends at byte {end} of {size}; download it again")
        found[name] = Lying(path, kinds[kind], shape, data + start, data + end)
    _check_order(path, found, data, data + size)
    return found


def _check_order(path: Path, found: Mapping[str, Lying], start: int, end: int) -> None:
    """Raise ModelError if tensors overlap or leave gaps, which the format forbids."""
    at = start
    for name, lying in sorted(found.items(), key=lambda item: (item[1].start, item[1].end)):
        if lying.start != at:
            raise ModelError(
                f"{path.name}: {name} begins at byte {lying.start}, but the data before it end at byte {at}"
            )
        at = lying.end
    if at != end:
        raise ModelError(f"{path.name} has {end} bytes, but its tensors end at byte {at}; download it again")
