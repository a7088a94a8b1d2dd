"""A tensor of the files, with the layout that an op reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.weights.stored_tensor import StoredTensor

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


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that an op reads, with `shape` [outputs, inputs] (matrix) or [outputs] (vector).

    - `transposed`: the file has [inputs, outputs].
    - `order`: the file's order of rows, which is undone.
    - `folded`: the file's shape, if it differs.
    - `stack`: the index in a larger tensor of its name.
    - `wide`: a matrix that is float32 in any run.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    order: ByGroup | None = None
    folded: tuple[int, ...] | None = None
    stack: InStack | None = None
    wide: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the file; [count, ...] for one of a stack."""
        own = self.folded or (self.shape[::-1] if self.transposed else self.shape)
        return own if self.stack is None else (self.stack.count, *own)

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector; vectors stay float32."""
        return len(self.shape) == 1

    def dtype(self, run: torch.dtype) -> torch.dtype:
        """Return the dtype in which ops read the tensor, if the model runs in the dtype `run`."""
        return VECTOR_DTYPE if self.is_vector or self.wide else run

    def cut(self, stored: StoredTensor) -> StoredTensor:
        """Return its part of the stored tensor."""
        return stored if self.stack is None else stored.rows(self.stack.index, self.stack.index + 1)

    def arranged(self, stored: Tensor) -> Tensor:
        """Return the tensor in the op's layout, from its part of the file."""
        own = stored if self.stack is None else stored[0]
        found = own.t().contiguous() if self.transposed else own.reshape(self.shape)
        return found if self.order is None else self.order.undone(found)

    def __str__(self) -> str:
        return self.name if self.stack is None else f"{self.name}[{self.stack.index}]"


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

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """Return a tensor on the run's device, in the dtype that `Weight.dtype` returns.

        `keep`: the op uses the matrix unchanged, so the result must not be a view of the mapped file. Vectors never
        are.
        """

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """Return several tensors concatenated by rows."""
