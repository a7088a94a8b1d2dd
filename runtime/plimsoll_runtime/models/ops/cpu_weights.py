"""An op's weights as the CPU kernels read them: tensors that stay where they are, and their addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.linear import PackedGatedLinear, PackedLinear
from plimsoll_kernels.cpu.op_records import LinearRecord
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_runtime.models.ops.weight import Weight, Weights


class CpuWeights:
    """Puts weights into `places`, in the order in which it is asked for them. `kept` owns the memory of addresses.

    `embedding`: that of the model, or its output layer if both have one matrix. `dtype`: that of matrices.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        reader: Weights,
        places: Places,
        dtype: torch.dtype,
        embedding: Tensor | PackedLinear,
    ) -> None:
        self.kernels = kernels
        self.reader = reader
        self.places = places
        self.dtype = dtype
        self.embedding = embedding
        self.kept: list[object] = [embedding]

    def keep(self, tensor: Tensor) -> int:
        """The address of a tensor that is kept as it is."""
        kept = self.places.keep(tensor)
        self.kept.append(kept)
        return kept.data_ptr()

    def packed(self, shape: Sequence[int], fill: Callable[[Tensor], object]) -> int:
        """The address of memory that `fill` writes to."""
        packed = self.places.place(shape, self.dtype, fill)
        self.kept.append(packed)
        return packed.data_ptr()

    def table(self, weight: Weight | None) -> int | None:
        """A matrix that the kernels read as it is."""
        return None if weight is None else self.keep(self.reader.read(weight, keep=not self.places.copies))

    def floats(self, weight: Weight | None) -> int | None:
        """A tensor in float32."""
        return None if weight is None else self.keep(self.reader.read(weight).float())

    def scale(self, weight: Weight | None, width: int, offset: float, scale: float = 1.0) -> int:
        """What a norm multiplies by: the weight plus an offset, or ones; times `scale`."""
        found = torch.ones(width) if weight is None else self.reader.read(weight).float() + offset
        return self.keep(found if scale == 1.0 else found * scale)

    def decay(self, weight: Weight) -> int:
        """-e^w, a state's [width, count] transposed so that neighbours are computed together."""
        found = -self.reader.read(weight).float().exp()
        return self.keep(found.t().contiguous() if found.dim() > 1 else found)

    def linear(self, parts: Sequence[Weight], biases: Sequence[Weight]) -> LinearRecord:
        """A product with matrices one below the other."""
        bias = self._bias(biases)
        linear = PackedLinear(self.kernels, self.reader.joined(parts), bias, self.places)
        self.kept.append(linear)
        return linear.record

    def gated_linear(self, parts: Sequence[Weight], biases: Sequence[Weight]) -> LinearRecord:
        """A product with a gate and what it opens."""
        bias = self._bias(biases)
        gate, up = self.gate_up(parts)
        linear = PackedGatedLinear(self.kernels, gate, up, bias, self.places)
        self.kept.append(linear)
        return linear.record

    def gate_up(self, parts: Sequence[Weight]) -> Sequence[Tensor]:
        """The gate and what it opens, which may be stored as one."""
        if len(parts) == 1:
            return self.reader.read(parts[0]).chunk(2)
        return [self.reader.read(part) for part in parts]

    def _bias(self, biases: Sequence[Weight]) -> Tensor | None:
        return self.reader.joined(biases) if biases else None
