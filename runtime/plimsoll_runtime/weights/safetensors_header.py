"""Reads the header of a safetensors file without torch.

Format: an unsigned 64-bit length, that many bytes of JSON (name to dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened

MAX_HEADER = 100 * 2**20


def read_header(path: Path) -> tuple[Mapping[str, Any], int]:
    """Return a file's header and the offset of its data. Raises SourceError or ModelError naming the file."""
    with opened(path) as file:
        start = file.read(8)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (0,)
        if not 0 < length <= min(MAX_HEADER, path.stat().st_size - 8):
            raise ModelError(f"{path.name} is not a safetensors file, or is truncated; download it again")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path.name}: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path.name}: the header is not a JSON object")
    return header, 8 + length


def stated_size(path: Path) -> int:
    """Return the size that a file should have by its header, in bytes. Raises as `read_header` does."""
    header, start = read_header(path)
    entries = (entry_of(path, name, entry) for name, entry in header.items() if name != "__metadata__")
    return start + max((end for *_, end in entries), default=0)


def entry_of(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, start and end of a header entry. Raises ModelError if the entry is malformed."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, end]} if all(
            type(n) is int and n >= 0 for n in (*shape, start, end)
        ):
            return kind, tuple(shape), start, end
    raise ModelError(f"{path.name}: the header's entry for {name} is malformed")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object and reject duplicate names, of which only the last would be kept."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
