"""Tensors on their way into an image, and out of it: for decoders that read them plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.places import Places
from plimsoll_runtime.weights.tensors import TensorSource


class ThroughPlaces:
    """What is read from files lies in its place from then on: see TensorSource."""

    def __init__(self, source: TensorSource, places: Places) -> None:
        self.shapes = source.shapes
        self._source = source
        self._places = places

    def read(self, name: str, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """See TensorSource."""
        return self._places.keep(self._source.read(name, dtype))


class ShapesOnly:
    """Hollow tensors, of which a decoder whose places are filled looks at shapes only: see TensorSource."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def read(self, name: str, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """See TensorSource."""
        return hollow(self.shapes[name], dtype)


def hollow(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of this shape in the memory of one element.

    (Torch's "meta" tensors would be the thing, but to compute with the first of them it imports for two seconds.)
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))
