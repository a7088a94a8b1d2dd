"""A tensor as its file has it, with its scheme. It is dequantised on request, a range of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
"""Components by name. They may be a mapped file and must not be modified."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the package: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


class Scheme(Protocol):
    """The meaning of a tensor's components. Equal schemes have equal meanings."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the numbers in a dtype. The result may be a component itself."""

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the components of the rows from `first` to before `last`."""

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the components of some columns. Raises ValueError if the scheme cannot be cut there."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in its file's encoding. `shape` is [rows, columns] for a matrix, [rows] for a vector."""

    scheme: Scheme
    shape: tuple[int, ...]
    parts: Parts
    release: Callable[[], object] | None = None

    def rows(self, first: int, last: int) -> StoredTensor:
        """Return a range of rows. Raises ValueError if it exceeds the tensor."""
        self._check("rows", first, last, self.shape[0])
        return replace(self, shape=(last - first, *self.shape[1:]), parts=self.scheme.rows(self.parts, first, last))

    def columns(self, first: int, last: int) -> StoredTensor:
        """Return a range of a matrix's columns. Raises ValueError if it exceeds the matrix or the scheme cannot be cut
        there.
        """
        rows, columns = self.shape
        self._check("columns", first, last, columns)
        return replace(self, shape=(rows, last - first), parts=self.scheme.columns(self.parts, first, last))

    def converted(self, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """Return the numbers in a dtype. The result may be the mapped file itself and must not be modified.

        Set `keep` for tensors that live long: it copies a result that shares the file's memory. A view keeps its file
        mapped, and if memory is short the kernel would read the disk again on each access.
        """
        found = self.scheme.converted(self.parts, self.shape, dtype)
        if keep and any(
            found.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() for part in self.parts.values()
        ):
            found = found.clone()
        self.released()
        return found

    def released(self) -> None:
        """Release the file's pages from this process's memory. The next access reads them again."""
        if self.release is not None:
            self.release()

    def _check(self, what: str, first: int, last: int, size: int) -> None:
        if not 0 <= first < last <= size:
            raise ValueError(f"{what} {first} to {last} are not a range of a tensor of {size} {what}")


@dataclass(frozen=True, slots=True)
class Plain:
    """Scheme of numbers in a torch dtype: the component "values" has the tensor's shape."""

    dtype: torch.dtype

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return parts["values"].to(dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return {"values": parts["values"][first:last]}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        return {"values": parts["values"][:, first:last]}


def plain(values: Tensor) -> StoredTensor:
    """Return a stored tensor with the scheme `Plain`."""
    return StoredTensor(Plain(values.dtype), tuple(values.shape), {"values": values})


PIECE = 2**21
"""Elements decoded at a time, so that no float32 copy of a large embedding exists. Larger pieces exceed processor
caches, smaller ones cost more calls (a Q4_K_M of 270M in bfloat16: 3.0 s, with 2**23 elements 4.7 s)."""


def in_pieces(shape: tuple[int, ...], dtype: torch.dtype, decoded: Callable[[int, int], Tensor]) -> Tensor:
    """Fill a new tensor piece by piece.

    `decoded(first, last)` returns a range of its rows, with all dimensions except the last flattened to one.
    """
    out = torch.empty(shape, dtype=dtype)
    if out.numel():
        rows = out.view(-1, shape[-1])
        step = max(1, PIECE // shape[-1])
        for first in range(0, len(rows), step):
            last = min(first + step, len(rows))
            rows[first:last] = decoded(first, last)
    return out


ALIGNMENTS = (1, 32, 64, 128, 256)
"""Multiples at which quantised tensors can be cut: the sizes of their blocks."""


def converted_range(stored: StoredTensor, axis: int, first: int, last: int, dtype: torch.dtype) -> Tensor:
    """Return rows (`axis` 0) or columns (`axis` 1) of a matrix in a dtype, from index `first` to before `last`.

    If the scheme cannot be cut there, the blocks around the range are converted too.
    """
    size = stored.shape[axis]
    for alignment in ALIGNMENTS:
        begin, end = first // alignment * alignment, min(-(-last // alignment) * alignment, size)
        try:
            part = stored.rows(begin, end) if axis == 0 else stored.columns(begin, end)
        except ValueError:
            continue
        return part.converted(dtype).narrow(axis, first - begin, last - first)
    return stored.converted(dtype).narrow(axis, first, last - first)
