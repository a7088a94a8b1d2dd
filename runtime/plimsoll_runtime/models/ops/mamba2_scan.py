"""Mamba 2's scan, as matrix products over several rows at a time (Dao and Gu, 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.columns_records import DualScanRecord
from plimsoll_runtime.models.layers.states import scanned
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values, states_of
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.recurrent import DualShape, StateShape


def between(total: Tensor) -> Tensor:
    """Return decays from row j to row i [..., i, j], 0 if j is after i, from sums of log decays up to each row [...,
    Q].
    """
    count = total.shape[-1]
    later = torch.ones(count, count, dtype=torch.bool, device=total.device).triu(1)
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill_(later, -inf).exp_()


ROWS = 64
"""Rows of a sequence scanned at a time, for which each head has a square matrix of scores."""


@dataclass(frozen=True, slots=True)
class DualScan(Op):
    """h = exp(d A) h + d x B^T, y = h C + D x: for each head a state [head_dim, state], in float32.

    Reads x, B and C side by side [T, heads x head_dim + 2 groups x state], and a time step for each head [T, heads]. d
    = softplus(time step + `step_bias`), clamped to `limits`; A = -exp(`decay`) and D = `skip` [heads]. Heads of a group
    share B and C.
    """

    state: int
    shape: DualShape
    decay: Weight
    skip: Weight
    step_bias: Weight
    reads: Values
    writes: Values
    limits: tuple[float, float] = (0.0, inf)
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("state", "shape", "decay", "skip", "step_bias", "limits")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    @property
    def keeps(self) -> StateShape:
        return StateShape((self.shape.heads, self.shape.head_dim, self.shape.state), wide=True)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: rows in and out, each sequence's state read and written once, operations as for single
        rows.
        """
        shape = self.shape
        moved = rows.count * (shape.mixed + shape.heads + shape.inner) * size
        return OpCost(
            moved + 2 * rows.sequences * self.keeps.nbytes(size) + 3 * shape.heads * FLOAT32,
            6 * rows.count * shape.inner * shape.state,
        )

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the inputs in float32 and split, the results, and each head's scores (twice), B and C."""
        shape = self.shape
        return (2 * shape.mixed + 5 * shape.inner + shape.heads * (3 * ROWS + 2 * shape.state)) * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        state, shape, limits = self.state, self.shape, self.limits
        decay = -weights.read(self.decay).float().exp()
        skip, bias = weights.read(self.skip).float().unsqueeze(-1), weights.read(self.step_bias).float()
        widths = [shape.inner, shape.groups * shape.state, shape.groups * shape.state]

        def scan(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
            return (_one_row if values[0].shape[1] == 1 else _rows)(decay, values, before)

        def run(step: Step, mixed: Tensor, times: Tensor) -> Tensor:
            x, inputs, outputs = torch.split(mixed.float(), widths, dim=-1)
            x = x.view(-1, shape.heads, shape.head_dim)
            times = functional.softplus(times.float() + bias).clamp(*limits)
            each = [y.view(-1, shape.groups, shape.state) for y in (inputs, outputs)]
            result = scanned(states_of(step), state, ROWS, scan, [x, times, *each])
            return (result + x * skip).flatten(1).to(mixed.dtype)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        shape = self.shape
        [mixed, times], target = values.over_columns(self, (shape.mixed, shape.heads), shape.inner, in_place=False)

        def record(weights: CpuWeights) -> DualScanRecord:
            return DualScanRecord(
                decay=weights.decay(self.decay),
                skip=weights.floats(self.skip),
                step_bias=weights.floats(self.step_bias),
                mixed=mixed,
                times=times,
                state=self.state,
                target=target,
                heads=shape.heads,
                head_dim=shape.head_dim,
                groups=shape.groups,
                width=shape.state,
                least=self.limits[0],
                most=self.limits[1],
            )

        yield CpuOp(self.kind, record)


def _one_row(decay: Tensor, values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Scan one row of x [B, 1, heads, head_dim], time steps [B, 1, heads], B and C [B, 1, groups, state]. See Scan."""
    x, times, inputs, outputs = (value.squeeze(1) for value in values)
    repeats = x.shape[1] // inputs.shape[1]
    inputs, outputs = (each.repeat_interleave(repeats, 1) for each in (inputs, outputs))
    added = (x * times.unsqueeze(-1)).unsqueeze(-1) * inputs.unsqueeze(-2)
    after = added.addcmul_(before, (times * decay).exp()[..., None, None])
    return (after @ outputs.unsqueeze(-1)).squeeze(-1).unsqueeze(1), after


def _rows(decay: Tensor, values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Scan Q rows like `_one_row`: add each row's effect on later rows, and the state's effect on all."""
    x, times, inputs, outputs = (value.transpose(1, 2) for value in values)
    repeats = x.shape[1] // inputs.shape[1]
    scores = (outputs @ inputs.transpose(2, 3)).repeat_interleave(repeats, 1)
    inputs, outputs = (each.repeat_interleave(repeats, 1) for each in (inputs, outputs))
    x = x * times.unsqueeze(-1)
    total = (times * decay[:, None]).cumsum(-1)
    last = total[..., -1:]
    results = (scores * between(total)) @ x + (outputs @ before.transpose(2, 3)) * total.exp().unsqueeze(-1)
    left = x * (last - total).exp().unsqueeze(-1)
    return results.transpose(1, 2), before * last.exp().unsqueeze(-1) + left.transpose(2, 3) @ inputs
