"""Reads a decoder's weights op by op, so that at most one op's weights exist twice.

Matrices are packed straight from the source, which may be a mapped file. Tensors kept unchanged (embedding, norms) are
copied. Matrices are in the run's dtype. Vectors (norms, biases) stay in float32: GGUF stores them so, and rounding them
costs accuracy and saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.places import Places
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.utils.heap import own_pages
from plimsoll_runtime.utils.progress import Progress, silent
from plimsoll_runtime.weights.image_arena import ShapesOnly, hollow
from plimsoll_runtime.weights.tensor_source import TensorSource

STAGE = "load weights"


class WeightReader:
    """Reads a program's tensors onto the run's device, with matrices in `dtype`. `nbytes` counts the bytes read so far.

    `places`, if given, stores each tensor in the layout that ops read, before any packing.
    """

    def __init__(
        self,
        program: Program,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        places: Places | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.nbytes = 0
        self._shared = program.shared()
        self._kept: dict[str, Tensor] = {}
        self._source = source
        self._places = places
        self._progress = progress
        progress(STAGE, 0.0)

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """Return a weight. Raises ModelError if a norm or bias is not finite, because all later numbers would not be
        either.
        """
        name = str(weight)
        if name in self._kept:
            return self._kept[name]
        own = (keep or weight.is_vector) and self.device.type == "cpu" and self._places is None
        with own_pages():
            tensor = self._read(weight, keep=own)
        if weight.is_vector and not tensor.isfinite().all():
            raise ModelError(f"{weight.name} has numbers that are not finite: the file is damaged; download it again")
        if self._places is not None:
            tensor = self._places.keep(tensor)
        tensor = tensor.to(self.device)
        self.nbytes += tensor.nbytes
        if name in self._shared:
            self._kept[name] = tensor
        return tensor

    def forget(self, weight: Weight) -> None:
        """Drop a weight that was kept because several ops read it."""
        self._kept.pop(str(weight), None)

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """Return the weights concatenated along their rows."""
        tensors = [self.read(weight) for weight in weights]
        return tensors[0] if len(tensors) == 1 else self._joined(tensors)

    def done(self, fraction: float) -> None:
        """Report the fraction of the model that was read."""
        self._progress(STAGE, fraction)

    def _read(self, weight: Weight, *, keep: bool) -> Tensor:
        return weight.read(self._source.stored(weight.name), weight.dtype(self.dtype), keep=keep)

    @staticmethod
    def _joined(tensors: list[Tensor]) -> Tensor:
        with own_pages():
            return torch.cat(tensors)


class ShapeReader(WeightReader):
    """A WeightReader that reads nothing and returns hollow tensors (see `hollow`), for a decoder in a filled image."""

    def __init__(self, program: Program, dtype: torch.dtype) -> None:
        super().__init__(program, ShapesOnly(program.stored_shapes()), dtype, torch.device("cpu"), silent)

    def _read(self, weight: Weight, *, keep: bool) -> Tensor:
        return hollow(weight.shape, weight.dtype(self.dtype))

    @staticmethod
    def _joined(tensors: list[Tensor]) -> Tensor:
        rows = sum(tensor.shape[0] for tensor in tensors)
        return hollow((rows, *tensors[0].shape[1:]), tensors[0].dtype)
