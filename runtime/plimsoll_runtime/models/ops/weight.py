"""A tensor of the files, with the layout that an op reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.weights.stored_tensor import StoredTensor, converted_range

VECTOR_DTYPE = torch.float32
"""Dtype of norms and biases in any run."""


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Row order of files that store rows group by group, while the op reads part by part.

    Each of `groups` groups has rows of each part: `parts` are these numbers of rows. `first` has the indices of the
    parts in the order in which the op reads them.
    """

    groups: int
    parts: tuple[int, ...]
    first: tuple[int, ...]

    def undone(self, tensor: Tensor) -> Tensor:
        """Return the rows of all groups part by part, in the order `first`."""
        grouped = tensor.view(self.groups, sum(self.parts), *tensor.shape[1:])
        parts = torch.split(grouped, list(self.parts), dim=1)
        return torch.cat([parts[i].reshape(-1, *tensor.shape[1:]) for i in self.first])


@dataclass(frozen=True, slots=True)
class InStack:
    """One of `count` tensors that the file stores as one, [count, ...]."""

    index: int
    count: int


Range = tuple[int, int]
"""The first index, and the index after the last one."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows (`axis` 0) or columns (`axis` 1) of a tensor that one rank of a parallel group reads.

    `whole`: the tensor's shape in the op's layout. `ranges`: rows or columns of that layout, in ascending order.
    """

    whole: tuple[int, ...]
    axis: int
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Number of rows or columns in `ranges`."""
        return sum(end - first for first, end in self.ranges)

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of a whole tensor."""
        pieces = [tensor.narrow(self.axis, first, end - first) for first, end in self.ranges]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=self.axis)


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that an op reads, with `shape` [outputs, inputs] (matrix) or [outputs] (vector).

    - `transposed`: the file has [inputs, outputs].
    - `order`: the file's order of rows, which is undone.
    - `folded`: the file's shape, if it differs.
    - `stack`: the index in a larger tensor of its name.
    - `wide`: a matrix that is float32 in any run.
    - `part`: the rows or columns that are read; `shape` is theirs. None: all.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    order: ByGroup | None = None
    folded: tuple[int, ...] | None = None
    stack: InStack | None = None
    wide: bool = False
    part: Part | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor in the file; [count, ...] for one of a stack."""
        whole = self.shape if self.part is None else self.part.whole
        own = self.folded or (whole[::-1] if self.transposed else whole)
        return own if self.stack is None else (self.stack.count, *own)

    def rows(self, *ranges: Range) -> Weight:
        """Return the weight with only these rows of the op's layout, in ascending order; empty ranges are left out."""
        return self._with(0, ranges)

    def columns(self, first: int, end: int) -> Weight:
        """Return the weight with only these columns of the op's layout."""
        return self._with(1, ((first, end),))

    def _with(self, axis: int, ranges: Sequence[Range]) -> Weight:
        part = Part(self.shape, axis, tuple((first, end) for first, end in ranges if first < end))
        shape = list(self.shape)
        shape[axis] = part.size
        return replace(self, shape=tuple(shape), part=part)

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector; vectors stay float32."""
        return len(self.shape) == 1

    def dtype(self, run: torch.dtype) -> torch.dtype:
        """Return the dtype in which ops read the tensor, if the model runs in the dtype `run`."""
        return VECTOR_DTYPE if self.is_vector or self.wide else run

    def read(self, stored: StoredTensor, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """Return the numbers of the tensor, or of its part, in the op's layout and in a dtype, from the file's tensor.

        `keep`: see `StoredTensor.converted`.
        """
        part = self.part
        if part is None:
            return self._arranged(self._of_stack(stored).converted(dtype, keep=keep), self.shape)
        if self.stack is not None or self.folded is not None or len(part.whole) == 1:
            # These are small: a vector, or one expert.
            whole = self._of_stack(stored).converted(dtype, keep=keep)
            return part.of(self._arranged(whole, part.whole)).contiguous()
        wanted = torch.cat([torch.arange(*each) for each in part.ranges])
        if self.order is not None and part.axis == 0:
            wanted = self.order.undone(torch.arange(part.whole[0]))[wanted]
        covered = wanted.sort().values
        axis = 1 - part.axis if self.transposed else part.axis
        own = torch.cat([converted_range(stored, axis, *each, dtype) for each in _runs(covered)], dim=axis)
        own = own.t() if self.transposed else own
        if not torch.equal(wanted, covered):
            own = own.index_select(part.axis, torch.searchsorted(covered, wanted))
        return self.order.undone(own) if self.order is not None and part.axis == 1 else own.contiguous()

    def _of_stack(self, stored: StoredTensor) -> StoredTensor:
        return stored if self.stack is None else stored.rows(self.stack.index, self.stack.index + 1)

    def _arranged(self, stored: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a whole tensor in the op's layout."""
        own = stored if self.stack is None else stored[0]
        found = own.t().contiguous() if self.transposed else own.reshape(shape)
        return found if self.order is None else self.order.undone(found)

    def __str__(self) -> str:
        return self.name if self.stack is None else f"{self.name}[{self.stack.index}]"


def _runs(indices: Tensor) -> Iterator[Range]:
    """Yield ascending indices, int64 [N] with N > 0, as ranges."""
    breaks = (indices.diff() != 1).nonzero().flatten().tolist()
    firsts, lasts = [0, *(at + 1 for at in breaks)], [*breaks, len(indices) - 1]
    for first, last in zip(firsts, lasts, strict=True):
        yield int(indices[first]), int(indices[last]) + 1


def weights_in(values: Iterable[object]) -> Iterator[Weight]:
    """Yield all weights among these values, including those in nested tuples."""
    for value in values:
        if isinstance(value, Weight):
            yield value
        elif isinstance(value, tuple):
            yield from weights_in(value)


class Weights(Protocol):
    """Source of an op's tensors when it is compiled."""

    @property
    def device(self) -> torch.device:
        """The run's device."""

    @property
    def dtype(self) -> torch.dtype:
        """The run's dtype."""

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """Return a tensor on the run's device, in the dtype that `Weight.dtype` returns.

        `keep`: the op uses the matrix unchanged, so the result must not be a view of the mapped file. Vectors never
        are.
        """

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """Return several tensors concatenated by rows."""
