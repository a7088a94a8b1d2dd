"""A decoder's weights as they are read, op by op, so that never more than one op's exist twice.

Matrices are packed straight from where their source has them, which may be the mapped file; what a decoder keeps as
it is (embedding, norms) gets memory of its own. Matrices come in the dtype of the run. Vectors (norms, biases) come in
float32 whatever that is: GGUF stores them so, and to round them costs accuracy and saves nothing.
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
    """Reads a program's tensors, matrices in `dtype`, onto the run's device. `nbytes` counts what was read so far.

    `places`: where each tensor lies as soon as it is converted, for a decoder that computes with it as it is.
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
        """See Weights. Raises ModelError for a norm or bias that is not finite: every number after it would not be."""
        name = str(weight)
        if name in self._kept:
            return self._kept[name]
        own = (keep or weight.is_vector) and self.device.type == "cpu" and self._places is None
        with own_pages():
            stored = weight.cut(self._source.stored(weight.name)).converted(weight.dtype(self.dtype), keep=own)
        if weight.is_vector and not stored.isfinite().all():
            raise ModelError(f"{weight.name} holds numbers that are not finite: the file is damaged; fetch it again")
        tensor = self._arranged(weight, stored)
        if self._places is not None:
            tensor = self._places.keep(tensor)
        tensor = tensor.to(self.device)
        self.nbytes += tensor.nbytes
        if name in self._shared:
            self._kept[name] = tensor
        return tensor

    def forget(self, weight: Weight) -> None:
        """Nobody asks for it again: what several ops share is kept here until then."""
        self._kept.pop(str(weight), None)

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """See Weights."""
        tensors = [self.read(weight) for weight in weights]
        return tensors[0] if len(tensors) == 1 else self._joined(tensors)

    def done(self, fraction: float) -> None:
        """Whoever waits is told how much of the model is read."""
        self._progress(STAGE, fraction)

    @staticmethod
    def _arranged(weight: Weight, stored: Tensor) -> Tensor:
        return weight.arranged(stored)

    @staticmethod
    def _joined(tensors: list[Tensor]) -> Tensor:
        with own_pages():
            return torch.cat(tensors)


class ShapeReader(WeightReader):
    """Reads nothing: its tensors have shapes and no memory (see `hollow`), for a decoder whose places are filled."""

    def __init__(self, program: Program, dtype: torch.dtype) -> None:
        super().__init__(program, ShapesOnly(program.stored_shapes()), dtype, torch.device("cpu"), silent)

    @staticmethod
    def _arranged(weight: Weight, stored: Tensor) -> Tensor:
        return hollow(weight.shape, stored.dtype)

    @staticmethod
    def _joined(tensors: list[Tensor]) -> Tensor:
        rows = sum(tensor.shape[0] for tensor in tensors)
        return hollow((rows, *tensors[0].shape[1:]), tensors[0].dtype)
