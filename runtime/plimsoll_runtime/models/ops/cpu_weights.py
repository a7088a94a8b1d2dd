"""Stores an op's weights in the layout of the CPU kernels, and returns their addresses."""

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
    """Puts weights into `places` in the order of the calls. `kept` owns the memory behind the addresses.

    `embedding`: the model's embedding, or its output layer if both share a matrix. `dtype`: the dtype of matrices.
    `exchange`: address of the exchange between ranks, if the program is that of one rank.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        reader: Weights,
        places: Places,
        dtype: torch.dtype,
        embedding: Tensor | PackedLinear,
        exchange: int | None = None,
    ) -> None:
        self.exchange = exchange
        self.kernels = kernels
        self.reader = reader
        self.places = places
        self.dtype = dtype
        self.embedding = embedding
        self.kept: list[object] = [embedding]

    def keep(self, tensor: Tensor) -> int:
        """Store a tensor unchanged. Return its address."""
        kept = self.places.keep(tensor)
        self.kept.append(kept)
        return kept.data_ptr()

    def packed(self, shape: Sequence[int], fill: Callable[[Tensor], object]) -> int:
        """Return the address of a tensor that `fill` writes; a filled weight image has it already, and `fill` is not
        called.
        """
        packed = self.places.place(shape, self.dtype, fill)
        self.kept.append(packed)
        return packed.data_ptr()

    def table(self, weight: Weight | None) -> int | None:
        """Return the address of a matrix that the kernels read unpacked; None without a matrix."""
        return None if weight is None else self.keep(self.reader.read(weight, keep=not self.places.copies))

    def floats(self, weight: Weight | None) -> int | None:
        """Return the address of a tensor in float32; None without a tensor."""
        return None if weight is None else self.keep(self.reader.read(weight).float())

    def scale(self, weight: Weight | None, width: int, offset: float, scale: float = 1.0) -> int:
        """Return the address of a norm's factors: weight plus offset, or ones without a weight; times `scale`."""
        found = torch.ones(width) if weight is None else self.reader.read(weight).float() + offset
        return self.keep(found if scale == 1.0 else found * scale)

    def decay(self, weight: Weight) -> int:
        """Return the address of -e^w. A matrix [width, count] is transposed, so that neighbouring columns are
        adjacent.
        """
        found = -self.reader.read(weight).float().exp()
        return self.keep(found.t().contiguous() if found.dim() > 1 else found)

    def linear(self, parts: Sequence[Weight], biases: Sequence[Weight]) -> LinearRecord:
        """Pack matrices, concatenated by rows, and their biases. Return the record of their product."""
        bias = self._bias(biases)
        linear = PackedLinear(self.kernels, self.reader.joined(parts), bias, self.places)
        self.kept.append(linear)
        return linear.record

    def gated_linear(self, parts: Sequence[Weight], biases: Sequence[Weight]) -> LinearRecord:
        """Pack a gate and an up projection and their biases. Return the record of their product."""
        bias = self._bias(biases)
        gate, up = self.gate_up(parts)
        linear = PackedGatedLinear(self.kernels, gate, up, bias, self.places)
        self.kept.append(linear)
        return linear.record

    def gate_up(self, parts: Sequence[Weight]) -> Sequence[Tensor]:
        """Return gate and up projection, which may be stored as one tensor."""
        if len(parts) == 1:
            return self.reader.read(parts[0]).chunk(2)
        return [self.reader.read(part) for part in parts]

    def _bias(self, biases: Sequence[Weight]) -> Tensor | None:
        return self.reader.joined(biases) if biases else None
