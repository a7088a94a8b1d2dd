"""A tensor as its file has it, with its scheme. It is dequantised only on request, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
"""By name. They may be the file itself, mapped, and are not to be written to."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in torch, without the package: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


class Scheme(Protocol):
    """What a tensor's parts mean. Equal schemes mean the same."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The numbers in a dtype; a part itself where that is what they are."""

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """Those of some rows, without what lies before `first` and from `last` on."""

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Those of some columns. Raises ValueError where the scheme cannot be cut."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """`shape` [rows, columns] of a matrix, [rows] of a vector. `release`: see `released`."""

    scheme: Scheme
    shape: tuple[int, ...]
    parts: Parts
    release: Callable[[], object] | None = None

    def rows(self, first: int, last: int) -> StoredTensor:
        """A part of the rows. Raises ValueError for rows that there are not."""
        self._check("rows", first, last, self.shape[0])
        return replace(self, shape=(last - first, *self.shape[1:]), parts=self.scheme.rows(self.parts, first, last))

    def columns(self, first: int, last: int) -> StoredTensor:
        """A part of a matrix's columns. Raises ValueError for columns that there are not, or that cannot be cut."""
        rows, columns = self.shape
        self._check("columns", first, last, columns)
        return replace(self, shape=(rows, last - first), parts=self.scheme.columns(self.parts, first, last))

    def converted(self, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """The numbers in a dtype. They are not to be written to: they may be the file itself, mapped.

        What is to be kept for good gets memory of its own: a view keeps its file mapped for as long as it lives, and
        where memory is short each look into it would read the disk again.
        """
        found = self.scheme.converted(self.parts, self.shape, dtype)
        if keep and any(
            found.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() for part in self.parts.values()
        ):
            found = found.clone()
        self.released()
        return found

    def released(self) -> None:
        """Pages of the file that were read no longer count as this process's; who looks again reads them again."""
        if self.release is not None:
            self.release()

    def _check(self, what: str, first: int, last: int, size: int) -> None:
        if not 0 <= first < last <= size:
            raise ValueError(f"{what} {first} to {last} of a tensor of {size}")


@dataclass(frozen=True, slots=True)
class Plain:
    """Numbers of torch's own types, one after the other: the part "values" has the tensor's shape."""

    dtype: torch.dtype

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme."""
        return parts["values"].to(dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {"values": parts["values"][first:last]}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {"values": parts["values"][:, first:last]}


def plain(values: Tensor) -> StoredTensor:
    """A tensor that is its own values."""
    return StoredTensor(Plain(values.dtype), tuple(values.shape), {"values": values})


PIECE = 2**21
"""Elements decoded at a time: the float32 copy of a large embedding never exists as a whole. Larger pieces leave the
processor's caches, smaller ones pay for more calls (a Q4_K_M of 270M in bfloat16: 3.0 s so, 4.7 with 2**23)."""


def in_pieces(shape: tuple[int, ...], dtype: torch.dtype, decoded: Callable[[int, int], Tensor]) -> Tensor:
    """A tensor of its own memory; `decoded` gives its rows from one to another, all dimensions but the last as one."""
    out = torch.empty(shape, dtype=dtype)
    if out.numel():
        rows = out.view(-1, shape[-1])
        step = max(1, PIECE // shape[-1])
        for first in range(0, len(rows), step):
            last = min(first + step, len(rows))
            rows[first:last] = decoded(first, last)
    return out
