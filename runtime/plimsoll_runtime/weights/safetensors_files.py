"""Safetensors, single or sharded: headers are read and checked at once, tensors lazily.

Format: an unsigned 64-bit length, that many bytes of JSON (name to dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.stored import StoredTensor, plain

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
"""What quantised matrices and their scales may be, beside FLOATS."""
MAX_HEADER = 100 * 2**20


@dataclass(frozen=True, slots=True)
class Lying:
    """Where a tensor lies, in bytes of its file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFiles:
    """The tensors of one or several files. Raises ModelError naming the file and the tensor.

    `kinds`: what may be stored, by the names that headers have for it. `dtypes`: as what each is.
    """

    def __init__(self, paths: Sequence[Path], kinds: Mapping[str, torch.dtype] = FLOATS) -> None:
        self._lie: dict[str, Lying] = {}
        for path in paths:
            for name, lying in _check_header(path, kinds).items():
                if name in self._lie:
                    raise ModelError(f"{name} is in {self._lie[name].path.name} and in {path.name}")
                self._lie[name] = lying
        self.shapes: dict[str, tuple[int, ...]] = {name: lying.shape for name, lying in self._lie.items()}
        self.dtypes: dict[str, torch.dtype] = {name: lying.dtype for name, lying in self._lie.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource: a view of the file, which is mapped anew for each."""
        lying = self._lie[name]
        try:
            return plain(_mapped(lying))
        except (RuntimeError, OSError) as error:
            raise ModelError(f"{lying.path.name}: {name} cannot be read: {error}") from error


def _mapped(lying: Lying) -> Tensor:
    """A view of the file, which is mapped for as long as that lives. Raises RuntimeError where it is too short now."""
    if lying.start == lying.end:
        return torch.empty(lying.shape, dtype=lying.dtype)
    whole = torch.from_file(str(lying.path), shared=False, size=lying.end, dtype=torch.uint8)
    values = whole[lying.start :]
    # Data may begin anywhere, numbers may not.
    aligned = values if values.data_ptr() % lying.dtype.itemsize == 0 else values.clone()
    return aligned.view(lying.dtype).view(lying.shape)


def _check_header(path: Path, kinds: Mapping[str, torch.dtype]) -> dict[str, Lying]:
    """Where a file's tensors lie, once its header agrees with itself and with the file's length.

    kinds: what may be stored, by the names that headers have for it.
    """
    header, data = _read_header(path)
    size = path.stat().st_size - data
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, start, end = _entry(path, name, entry)
        if kind not in kinds:
            raise ModelError(f"{path.name}: {name} is stored as {kind}; only {', '.join(kinds)} are supported")
        if end - start != kinds[kind].itemsize * prod(shape):
            raise ModelError(f"{path.name}: {name} has {end - start} bytes, but {kind} {list(shape)} needs others")
        if end > size:
            raise ModelError(f"{path.name} is cut short: {name} ends at byte {end} of {size}; fetch it again")
        found[name] = Lying(path, kinds[kind], shape, data + start, data + end)
    _check_order(path, found, data, data + size)
    return found


def _check_order(path: Path, found: Mapping[str, Lying], start: int, end: int) -> None:
    """The format has neither holes nor bytes that are of two tensors."""
    at = start
    for name, lying in sorted(found.items(), key=lambda item: (item[1].start, item[1].end)):
        if lying.start != at:
            raise ModelError(f"{path.name}: {name} begins at byte {lying.start}, and what is before it ends at {at}")
        at = lying.end
    if at != end:
        raise ModelError(f"{path.name} has {end} bytes, and its tensors end at {at}; fetch it again")


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, first byte and end of a tensor, each of its kind."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, end]} if all(
            type(n) is int and n >= 0 for n in (*shape, start, end)
        ):
            return kind, tuple(shape), start, end
    raise ModelError(f"{path.name}: the header's entry for {name} is malformed")


def _read_header(path: Path) -> tuple[Mapping[str, Any], int]:
    with opened(path) as file:
        start = file.read(8)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (0,)
        if not 0 < length <= min(MAX_HEADER, path.stat().st_size - 8):
            raise ModelError(f"{path.name} is not a safetensors file, or is cut short; fetch it again")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path.name}: its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path.name}: its header is not a JSON object")
    return header, 8 + length


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different: of two tensors with one name, only one would be seen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is in it twice")
    return found
