"""Tensors that are only shapes: for a decoder whose places are filled, or imagined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.weights.stored import Parts, StoredTensor


@dataclass(frozen=True, slots=True)
class Hollow:
    """The scheme of a tensor without numbers (see weights.stored)."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `hollow`."""
        return hollow(shape, dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return parts

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return parts


class ShapesOnly:
    """See TensorSource: hollow tensors, of which a decoder whose places are filled looks at shapes only."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource."""
        return StoredTensor(Hollow(), self.shapes[name], {})


def hollow(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of this shape in the memory of one element.

    (Torch's "meta" tensors would be the thing, but to compute with the first of them it imports for two seconds.)
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))
