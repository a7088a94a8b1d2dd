"""Tensors on their way into an image, and out of it: for decoders that read them plain."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Tensors without memory (torch's "meta"), of whom a decoder looks at shapes only: see TensorSource."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def read(self, name: str, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """See TensorSource."""
        return torch.empty(self.shapes[name], dtype=dtype, device="meta")
