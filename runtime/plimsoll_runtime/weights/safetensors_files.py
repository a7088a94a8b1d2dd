"""Safetensors, single or sharded: headers are read and checked at once, tensors lazily.

Format: an unsigned 64-bit length, that many bytes of JSON (name to dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.stored import StoredTensor, plain

FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER = 100 * 2**20


class SafetensorsFiles:
    """The tensors of one or several files. Raises ModelError naming the file and the tensor."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._home: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in paths:
            for name, shape in _check_header(path).items():
                if name in self._home:
                    raise ModelError(f"{name} is in {self._home[name].name} and in {path.name}")
                self._home[name] = path
                self.shapes[name] = shape

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource: a view of the file, which is mapped anew for each."""
        path = self._home[name]
        try:
            with safe_open(path, framework="pt") as file:
                return plain(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path.name}: {name} cannot be read: {error}") from error


def _check_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's tensors, once its header agrees with itself and with the file's length."""
    header, data = _read_header(path)
    size = path.stat().st_size - data
    shapes = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, start, end = _entry(path, name, entry)
        if kind not in FLOAT_BYTES:
            raise ModelError(f"{path.name}: {name} is stored as {kind}; only {', '.join(FLOAT_BYTES)} are supported")
        if end - start != FLOAT_BYTES[kind] * prod(shape):
            raise ModelError(f"{path.name}: {name} has {end - start} bytes, but {kind} {list(shape)} needs others")
        if end > size:
            raise ModelError(f"{path.name} is cut short: {name} ends at byte {end} of {size}; fetch it again")
        shapes[name] = shape
    return shapes


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
