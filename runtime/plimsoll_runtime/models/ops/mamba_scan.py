"""Mamba's selective scan (Gu and Dao, 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.columns_records import MAX_STATES, SelectiveScanRecord
from plimsoll_runtime.models.layers.states import scanned
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values, states_of
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.recurrent import StateShape

ROWS = 64
"""Rows of a sequence scanned at a time."""
ELEMENTS = 2**22
"""Most elements of decays, and of inputs, that exist at a time: 16 MiB of each."""


@dataclass(frozen=True, slots=True)
class SelectiveScan(Op):
    """h = exp(d A) h + d x B, y = h C + D x: for each of `width` columns a state of N numbers, in float32.

    Reads x and time steps [T, width], B and C [T, N]. d = softplus(time step + `step_bias`); A = -exp(`decay`) [width,
    N]; D is `skip` [width].
    """

    state: int
    decay: Weight
    skip: Weight
    step_bias: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("state", "decay", "skip", "step_bias")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    @property
    def keeps(self) -> StateShape:
        return StateShape(self.decay.shape, wide=True)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: rows in and out, each sequence's state read and written once."""
        width, count = self.decay.shape
        moved = rows.count * (3 * width + 2 * count) * size + 2 * rows.sequences * self.keeps.nbytes(size)
        return OpCost(moved + width * (count + 2) * FLOAT32, 7 * rows.count * width * count)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the inputs in float32, three copies of time steps, and the result with its skip."""
        width, count = self.decay.shape
        return (8 * width + 4 * count) * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        state, decay = self.state, -weights.read(self.decay).float().exp()
        skip, bias = weights.read(self.skip).float(), weights.read(self.step_bias).float()

        def scan(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
            return _scan(decay, values, before)

        def run(step: Step, x: Tensor, times: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
            times = functional.softplus(times.float() + bias)
            wide = x.float()
            values = [times, times * wide, inputs.float(), outputs.float()]
            return (scanned(states_of(step), state, ROWS, scan, values) + wide * skip).to(x.dtype)

        return run

    def check_cpu(self) -> None:
        if self.decay.shape[1] > MAX_STATES:
            raise UnsupportedOpError(f"supports at most {MAX_STATES} state numbers for each column of Mamba's scan")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        width, count = self.decay.shape
        sources, target = values.over_columns(self, (width, width, count, count), width, in_place=False)
        source, times, inputs, outputs = sources

        def record(weights: CpuWeights) -> SelectiveScanRecord:
            return SelectiveScanRecord(
                decay=weights.decay(self.decay),
                skip=weights.floats(self.skip),
                step_bias=weights.floats(self.step_bias),
                source=source,
                times=times,
                inputs=inputs,
                outputs=outputs,
                state=self.state,
                target=target,
                width=width,
                count=count,
            )

        yield CpuOp(self.kind, record)


def _scan(decay: Tensor, values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Scan time steps and inputs [B, Q, width], B and C [B, Q, N] from states [B, width, N]. See layers.states.Scan."""
    each = max(1, ELEMENTS // before.numel())
    results, state = [], before
    for times, added, inputs, outputs in zip(*(torch.split(value, each, dim=1) for value in values), strict=True):
        decays = (times.unsqueeze(-1) * decay).exp_()
        held = added.unsqueeze(-1) * inputs.unsqueeze(-2)
        for row in range(held.shape[1]):
            state = held[:, row].addcmul_(decays[:, row], state)
        results.append((held @ outputs.unsqueeze(-1)).squeeze(-1))
        state = state.clone() if held.shape[1] > 1 else state
    return torch.cat(results, 1), state
