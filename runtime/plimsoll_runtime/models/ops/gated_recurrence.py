"""Griffin's gated recurrence (De et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.columns_records import GatedRecurrenceRecord
from plimsoll_runtime.models.layers.states import scanned
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values, states_of
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.recurrent import StateShape

ROWS = 64
"""Rows of a sequence computed at a time."""
SHARPNESS = 8.0
"""The constant c of the paper: with a fully open gate, a token decays the state by exp(-c softplus(`decay`))."""


@dataclass(frozen=True, slots=True)
class GatedRecurrence(Op):
    """h = a h + sqrt(1 - a^2) i x, with the first token unscaled: a number for each of `width` columns, in float32.

    Gates are block products: r = sigmoid(x R + b), i = sigmoid(x I + b), with `recurrent` and `inputs` [heads, width /
    heads, width / heads] and biases [width]. a = exp(-8 r softplus(`decay`)), `decay` [width].
    """

    state: int
    decay: Weight
    recurrent: Weight
    recurrent_bias: Weight
    inputs: Weight
    inputs_bias: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("state", "decay", "recurrent", "recurrent_bias", "inputs", "inputs_bias")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    @property
    def keeps(self) -> StateShape:
        return StateShape(self.decay.shape, wide=True)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        width, block = self.decay.shape[0], self.inputs.shape[-1]
        moved = 2 * rows.count * width * size + 2 * rows.sequences * self.keeps.nbytes(size)
        return OpCost(moved + width * (2 * block + 3) * FLOAT32, rows.count * width * (4 * block + 10))

    def row_bytes(self, size: int) -> int:
        return 10 * self.decay.shape[0] * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        state, decay = self.state, -SHARPNESS * functional.softplus(weights.read(self.decay).float())
        recurrent, inputs = weights.read(self.recurrent).float(), weights.read(self.inputs).float()
        biases = [weights.read(each).float() for each in (self.recurrent_bias, self.inputs_bias)]
        heads = inputs.shape[0]

        def gate(blocks: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return ((blocks @ weight).transpose(0, 1).flatten(1) + bias).sigmoid()

        def run(step: Step, x: Tensor) -> Tensor:
            wide = x.float()
            blocks = wide.view(len(x), heads, -1).transpose(0, 1)
            decays = decay * gate(blocks, recurrent, biases[0])
            opened = wide * gate(blocks, inputs, biases[1])
            kept = (1 - (2 * decays).exp()).sqrt().masked_fill((step.positions == 0).unsqueeze(-1), 1.0)
            return scanned(states_of(step), state, ROWS, _scan, [decays, opened * kept]).to(x.dtype)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        [width] = self.decay.shape
        gates = values.scratch("gates", 2 * width, operands=False)
        [source], target = values.over_columns(self, (width,), width, in_place=False)

        def record(weights: CpuWeights) -> GatedRecurrenceRecord:
            decay = -SHARPNESS * functional.softplus(weights.reader.read(self.decay).float())
            return GatedRecurrenceRecord(
                decay=weights.keep(decay),
                recurrent=weights.floats(self.recurrent),
                inputs=weights.floats(self.inputs),
                recurrent_bias=weights.floats(self.recurrent_bias),
                inputs_bias=weights.floats(self.inputs_bias),
                source=source,
                state=self.state,
                gates=gates,
                target=target,
                width=width,
                heads=self.inputs.shape[0],
            )

        yield CpuOp(self.kind, record)


def _scan(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Scan log decays and inputs [B, Q, width] from states [B, width]. See layers.states.Scan."""
    decays, results = values[0].exp(), values[1].clone()
    state = before
    for row in range(results.shape[1]):
        state = results[:, row].addcmul_(decays[:, row], state)
    return results, state.clone()
