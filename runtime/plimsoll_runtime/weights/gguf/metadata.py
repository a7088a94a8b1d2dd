"""GGUF metadata reader, in one pass: a vocabulary of 262,144 tokens takes half a second instead of ten.

Layout (little endian): "GGUF", version u32, tensor count u64, pair count u64, then the pairs: a key (u64 length and
bytes), a type u32, a value. Arrays are a type, a count and the values. The tensors follow: a name, the number of
dimensions u32, the dimensions u64 (fastest first), a type u32, and an offset u64 into the data, which begins at the
next multiple of general.alignment.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_F32 = 0
MAX_FLOATS = 2**16
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_VALUES = 2**24
"""Most values of an array. The largest vocabularies have 262,144 tokens, and a few times as many merges."""
MAX_TEXT = 2**24
MAX_BYTES = 2**27
"""Most bytes of all metadata: eight times the size of the largest vocabularies."""
LONGEST_NAME = 100
"""Most characters of a key that an error message shows."""
ROPE_FACTORS = "rope_freqs.weight"
"""Name of a tensor that holds metadata: the divisors of the rope's frequencies."""
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Position of a tensor: shape in torch's order (slowest dimension first), ggml type, byte offset in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """The metadata of a file, a digest of those that concern the tokenizer, and its tensors by name."""

    values: Mapping[str, Any]
    digest: str
    tensors: Mapping[str, GgufTensor]


def read_metadata(path: Path) -> GgufMetadata:
    """Read a file's metadata.

    Raises ModelError if it is not a GGUF file or is truncated, SourceError if it cannot be read.
    """
    with opened(path) as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ModelError(f"{path} is empty") from error
        with view:
            try:
                return _parse(view)
            except (struct.error, UnicodeDecodeError, OverflowError, _NotGgufError) as error:
                raise ModelError(f"{path} is not a readable GGUF file: {error}") from error


def read_floats(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    """Return the values of a small float32 tensor. Raises ModelError if it is not one, or is truncated."""
    count = prod(tensor.shape)
    if tensor.kind != _F32 or count > MAX_FLOATS:
        raise ModelError(
            f"{path.name}: {ROPE_FACTORS} has {count} values of type {tensor.kind}; it must be at most {MAX_FLOATS} "
            "float32"
        )
    with opened(path) as file:
        file.seek(min(tensor.offset, path.stat().st_size))
        stored = file.read(4 * count)
    if len(stored) < 4 * count:
        raise ModelError(f"{path.name} is truncated; download it again")
    return struct.unpack(f"<{count}f", stored)


class _NotGgufError(ValueError):
    pass


def _parse(view: mmap.mmap) -> GgufMetadata:
    if view[:4] != b"GGUF":
        raise _NotGgufError("it does not start with the bytes GGUF")
    version, count, pairs = struct.unpack_from("<IQQ", view, 4)
    if version not in (2, 3):
        raise _NotGgufError(f"version {version} is not supported (only 2 and 3)")
    position, values, digest = 24, {}, hashlib.sha256()
    for _ in range(pairs):
        start = position
        key, position = _string(view, position)
        (kind,) = struct.unpack_from("<I", view, position)
        try:
            values[key], position = _value(view, position + 4, kind)
        except (struct.error, UnicodeDecodeError, _NotGgufError) as error:
            raise _NotGgufError(f"{key[:LONGEST_NAME]}: {error}") from error
        if position > MAX_BYTES:
            raise _NotGgufError(f"{key[:LONGEST_NAME]}: the metadata exceed the limit of {MAX_BYTES:,} bytes")
        if key.startswith("tokenizer.") or key == "general.architecture":
            digest.update(view[start:position])
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _NotGgufError(f"general.alignment is {alignment!r}; it must be a positive integer")
    tensors = _tensors(view, position, count, alignment)
    return GgufMetadata(values, digest.hexdigest()[:32], tensors)


def _tensors(view: mmap.mmap, position: int, count: int, alignment: int) -> dict[str, GgufTensor]:
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name, position = _string(view, position)
        (dimensions,) = struct.unpack_from("<I", view, position)
        if dimensions > MAX_DIMENSIONS:
            raise _NotGgufError(f"{name} has {dimensions} dimensions; at most {MAX_DIMENSIONS} are supported")
        *shape, kind, offset = struct.unpack_from(f"<{dimensions}QIQ", view, position + 4)
        position += 16 + 8 * dimensions
        if name in found:
            raise _NotGgufError(f"two tensors have the name {name}")
        found[name] = (tuple(reversed(shape)), kind, offset)
    start = -(-position // alignment) * alignment
    return {name: GgufTensor(shape, kind, start + offset) for name, (shape, kind, offset) in found.items()}


def _value(view: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(view, position)
    if kind == _ARRAY:
        return _array(view, position)
    if kind not in _SCALARS:
        raise _NotGgufError(f"a value has the unknown type {kind}")
    scalar = struct.Struct("<" + _SCALARS[kind])
    return scalar.unpack_from(view, position)[0], position + scalar.size


def _array(view: mmap.mmap, position: int) -> tuple[list[Any], int]:
    kind, count = struct.unpack_from("<IQ", view, position)
    position += 12
    if count > len(view):
        raise _NotGgufError(f"an array of {count} values is larger than the file")
    if count > MAX_VALUES:
        raise _NotGgufError(f"an array has {count:,} values, more than the limit of {MAX_VALUES:,}")
    if kind in _SCALARS:
        values = struct.Struct(f"<{count}{_SCALARS[kind]}")
        return list(values.unpack_from(view, position)), position + values.size
    if kind != _STRING:
        raise _NotGgufError(f"an array has the unknown type {kind}")
    return _strings(view, position, count)


def _strings(view: mmap.mmap, position: int, count: int) -> tuple[list[str], int]:
    """Read an array of strings. This loop is hot: the vocabulary is most of a file's metadata."""
    unpack, strings, most = _U64.unpack_from, list[str](), min(len(view), MAX_BYTES)
    for _ in range(count):
        (length,) = unpack(view, position)
        position += 8
        end = position + length
        if end > most:
            raise _NotGgufError(f"a list of strings is truncated or exceeds {MAX_BYTES:,} bytes")
        strings.append(view[position:end].decode())
        position = end
    return strings, position


def _string(view: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = _U64.unpack_from(view, position)
    start, end = position + 8, position + 8 + length
    if end > len(view):
        raise _NotGgufError("a string is truncated")
    if length > MAX_TEXT:
        raise _NotGgufError(f"a string has {length:,} bytes, more than the limit of {MAX_TEXT:,}")
    return view[start:end].decode(), end
