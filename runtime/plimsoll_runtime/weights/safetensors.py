"""Safetensors, single or sharded: headers are read and checked at once, tensors lazily."""

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
"""What quantised matrices and their scales may be, beside FLOATS."""


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
