"""Norms over hidden states, with or without a gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.columns_records import GatedNormRecord
from plimsoll_kernels.cpu.op_records import RESULT, Normed, NormRecord
from plimsoll_kernels.rms_norm.op import add_rms_norm, rms_norm
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.norm import Norm, NormKind

FLOPS = 4
"""Operations for each element: square, add, scale, weight."""


@dataclass(frozen=True, slots=True)
class Normalise(Op):
    """y = norm(x) over a whole row. `weight` and `bias` are [width] or None."""

    norm: Norm
    width: int
    reads: Values
    writes: Values
    weight: Weight | None
    bias: Weight | None = None
    kind: OpKind = OpKind.NORM
    cpu_fields: ClassVar = ("norm", "width", "weight", "bias")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost(2 * elements * size + len(self.weights()) * self.width * FLOAT32, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """Count the result and three float32 rows: the states, their squares and the norm."""
        return self.width * size + 3 * self.width * FLOAT32

    def loaded(self, weights: Weights) -> Normaliser:
        """Return the torch module of the norm."""
        return Normaliser(
            self.norm.kind, self.norm.eps, scale_of(self.norm, self.weight, weights), read(self.bias, weights)
        )

    def compiled(self, weights: Weights) -> Run:
        normaliser = self.loaded(weights)

        def run(step: Step, x: Tensor) -> Tensor:
            return normaliser(x)

        return run

    def check_cpu(self) -> None:
        check_known(self.norm, "eps", "kind", "offset", "weighted", "biased")
        if self.norm.kind == "rms" and self.bias is not None:
            raise UnsupportedOpError("does not support a bias of RMS norms")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op. The last op of a program writes the step's result."""
        source = values.floats(self.reads[0], self.width)
        values.at += 1
        [name] = self.writes
        if values.at == len(values.ops):
            target = RESULT
        else:
            target = values.written(name, self.width, operands=values.is_multiplied(name))
        yield CpuOp(OpKind.NORM, lambda weights: self.cpu_record(weights, source, target))

    def added(self, values: CpuValues, add: Add) -> CpuOp:
        """Return one op that adds this norm's result to the buffer of the sum's first input. Advance past the norm and
        the sum.
        """
        source, target = (values.floats(name, self.width) for name in (self.reads[0], add.reads[0]))
        values.at += 2
        values.changed(add.writes[0], add.width, target)
        return CpuOp(OpKind.NORM, lambda weights: self.cpu_record(weights, source, target, adds=True, scale=add.scale))

    def cpu_record(
        self, weights: CpuWeights, source: int, target: int, *, first: int = 0, adds: bool = False, scale: float = 1.0
    ) -> NormRecord:
        """Return the record of a norm of the columns from `first` on. `adds`: add `scale` times the result to the
        target.
        """
        return NormRecord(
            weight=weights.scale(self.weight, self.width, self.norm.offset, scale),
            bias=None if self.bias is None else weights.keep(weights.reader.read(self.bias) * scale),
            source=source,
            target=target,
            width=self.width,
            first=first,
            adds=adds,
            norm=Normed[self.norm.kind.upper()],
            eps=self.norm.eps,
        )


def scale_of(norm: Norm, weight: Weight | None, weights: Weights) -> Tensor | None:
    """Return the factors of a norm, the weight plus the offset, in float32; None without a weight."""
    found = read(weight, weights)
    return None if found is None else found.float() + norm.offset


def read(weight: Weight | None, weights: Weights) -> Tensor | None:
    """Read a weight; None without one."""
    return None if weight is None else weights.read(weight)


class Normaliser:
    """A norm over the last dimension, computed in float32 and rounded once.

    `scale` is [D], or [H, D] for H heads, and includes the offset; `bias` is [D].
    """

    def __init__(self, kind: NormKind, eps: float, scale: Tensor | None, bias: Tensor | None = None) -> None:
        self._layer = kind == "layer"
        self._eps = eps
        self._scale = scale
        self._bias = bias
        of_heads = scale is not None and scale.dim() > 1
        self._each = None if of_heads else scale
        self._own = scale if of_heads else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., D]."""
        if x.is_cuda and not self._layer and self._scale is not None and self._bias is None:
            return rms_norm(x, self._scale, self._eps)
        if self._layer:
            normed = functional.layer_norm(x.float(), (x.shape[-1],), self._each, self._bias, self._eps)
        else:
            normed = functional.rms_norm(x.float(), (x.shape[-1],), self._each, self._eps)
            normed = normed if self._bias is None else normed + self._bias
        return (normed if self._own is None else normed * self._own).to(x.dtype)

    def of_sum(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return (norm of the sum, the sum), in one pass on a GPU."""
        if x.is_cuda and not self._layer and self._scale is not None and self._bias is None:
            return add_rms_norm(x, added, self._scale, self._eps)
        total = x + added
        return self(total), total


@dataclass(frozen=True, slots=True)
class GatedNorm(Op):
    """norm(x * silu(g)) * w, or norm(x) * w * silu(g) if `after`; in float32. Reads x and g, both `width` wide.

    Each of `groups` equal groups of columns is normalised separately. `weight` is [width], or [width / groups] for all
    groups.
    """

    eps: float
    width: int
    groups: int
    weight: Weight
    reads: Values
    writes: Values
    after: bool = False
    kind: OpKind = OpKind.NORM
    cpu_fields: ClassVar = ("eps", "width", "groups", "weight", "after")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost(3 * elements * size + self.weight.shape[0] * FLOAT32, (FLOPS + 2) * elements)

    def row_bytes(self, size: int) -> int:
        return self.width * (5 * FLOAT32 + size)

    def compiled(self, weights: Weights) -> Run:
        eps, after, shape = self.eps, self.after, (self.groups, self.width // self.groups)
        weight = weights.read(self.weight).float().view(-1, shape[1])

        def run(step: Step, x: Tensor, gate: Tensor) -> Tensor:
            wide, opened = x.float(), functional.silu(gate.float())
            if not after:
                wide = wide * opened
            normed = functional.rms_norm(wide.reshape(-1, *shape), (shape[1],), None, eps) * weight
            result = normed.flatten(1)
            return (result * opened if after else result).to(x.dtype)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        [source, gate], target = values.over_columns(self, (self.width,) * 2, self.width, in_place=True)

        def record(weights: CpuWeights) -> GatedNormRecord:
            weight = weights.reader.read(self.weight).float().repeat(self.width // self.weight.shape[0])
            return GatedNormRecord(
                weight=weights.keep(weight),
                source=source,
                gate=gate,
                target=target,
                width=self.width,
                groups=self.groups,
                after=self.after,
                eps=self.eps,
            )

        yield CpuOp(self.kind, record)
