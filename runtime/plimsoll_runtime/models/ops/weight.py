"""A tensor of the files, as an op reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.weights.stored_tensor import StoredTensor

VECTOR_DTYPE = torch.float32
"""Of norms and biases, whatever the dtype of the matrices."""


@dataclass(frozen=True, slots=True)
class HeadByHead:
    """Rows that are stored for each key head: its queries, its key, its value, each of `head_dim` rows."""

    kv_heads: int
    queries: int
    head_dim: int

    def undone(self, tensor: Tensor) -> Tensor:
        """All queries, then all keys, then all values."""
        grouped = tensor.view(self.kv_heads, self.queries + 2, self.head_dim, *tensor.shape[1:])
        parts = torch.split(grouped, [self.queries, 1, 1], dim=1)
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Rows that are stored for each of `groups`: parts of so many rows each. They are read part by part, as `first`.

    `first`: the numbers of the parts in the order in which they are wanted.
    """

    groups: int
    parts: tuple[int, ...]
    first: tuple[int, ...]

    def undone(self, tensor: Tensor) -> Tensor:
        """All groups' rows of one part, then of the next."""
        grouped = tensor.view(self.groups, sum(self.parts), *tensor.shape[1:])
        parts = torch.split(grouped, list(self.parts), dim=1)
        return torch.cat([parts[i].reshape(-1, *tensor.shape[1:]) for i in self.first])


Order = HeadByHead | ByGroup


@dataclass(frozen=True, slots=True)
class InStack:
    """One of `count` tensors that the file has as one, [count, ...]."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Weight:
    """`shape` is what the op reads: [outputs, inputs] of a matrix, [outputs] of a vector.

    `transposed`: the file has [inputs, outputs]. `order`: what has to be done to its rows. `folded`: the shape that it
    has in the file, where that is another. `stack`: where it lies in a larger tensor of its name. `wide`: a matrix that
    stays float32 whatever the run is in.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    order: Order | None = None
    folded: tuple[int, ...] | None = None
    stack: InStack | None = None
    wide: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """In the file, where one in a stack is [count, ...]."""
        own = self.folded or (self.shape[::-1] if self.transposed else self.shape)
        return own if self.stack is None else (self.stack.count, *own)

    @property
    def is_vector(self) -> bool:
        """Whether it is one: those stay float32."""
        return len(self.shape) == 1

    def dtype(self, run: torch.dtype) -> torch.dtype:
        """In which an op reads it, in a run of a dtype."""
        return VECTOR_DTYPE if self.is_vector or self.wide else run

    def cut(self, stored: StoredTensor) -> StoredTensor:
        """Its own part of what the file has under its name."""
        return stored if self.stack is None else stored.rows(self.stack.index, self.stack.index + 1)

    def arranged(self, stored: Tensor) -> Tensor:
        """What the op reads, of its own part of the file."""
        own = stored if self.stack is None else stored[0]
        found = own.t().contiguous() if self.transposed else own.reshape(self.shape)
        return found if self.order is None else self.order.undone(found)

    def __str__(self) -> str:
        return self.name if self.stack is None else f"{self.name}[{self.stack.index}]"


def weights_in(values: Iterable[object]) -> Iterator[Weight]:
    """All of these values, and of tuples among them, that are weights."""
    for value in values:
        if isinstance(value, Weight):
            yield value
        elif isinstance(value, tuple):
            yield from weights_in(value)


class Weights(Protocol):
    """Where an op's tensors come from, when it is made ready to run."""

    @property
    def device(self) -> torch.device:
        """The run's."""

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """On the run's device: a vector in float32, a matrix in the run's dtype.

        `keep`: the op computes with the matrix as it is, so that it must not be the mapped file; vectors never are.
        """

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """Several, one below the other."""
