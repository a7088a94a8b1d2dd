"""A causal convolution of each column over the last tokens of its sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_kernels.cpu.columns_records import MAX_TAPS, ConvolveRecord
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError, activation_of
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.norm import read
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values, states_of
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.recurrent import StateShape


@dataclass(frozen=True, slots=True)
class Convolve(Op):
    """y[t] = activation(b + sum over k of w[k] x[t - K + 1 + k]). `weight` [width, K], `bias` [width].

    The state of a sequence is its last K - 1 rows of x.
    """

    state: int
    weight: Weight
    bias: Weight | None
    activation: Activation | None
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("state", "weight", "bias", "activation")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    @property
    def keeps(self) -> StateShape:
        width, taps = self.weight.shape
        return StateShape((taps - 1, width))

    def cost(self, rows: StepRows, size: int) -> OpCost:
        width, taps = self.weight.shape
        moved = 2 * width * (rows.count + rows.sequences * (taps - 1))
        return OpCost(moved * size + width * (taps + 1) * FLOAT32, 2 * rows.count * width * taps)

    def row_bytes(self, size: int) -> int:
        """Count a row with its state in the run's dtype, three float32 rows (the input and two copies of the sum), and
        the result twice.
        """
        width, taps = self.weight.shape
        return width * (taps * size + 3 * FLOAT32 + 2 * size)

    def compiled(self, weights: Weights) -> Run:
        state, taps = self.state, self.weight.shape[1]
        kernel = weights.read(self.weight).float().t().contiguous()
        bias = read(self.bias, weights)
        activation = None if self.activation is None else ACTIVATIONS[self.activation]

        def run(step: Step, x: Tensor) -> Tensor:
            y = (_alone if states_of(step).spans.alone else _together)(states_of(step), state, x, kernel, taps)
            y = y if bias is None else y + bias
            return (y if activation is None else activation(y)).to(x.dtype)

        return run

    def check_cpu(self) -> None:
        activation_of(self.activation)
        if self.weight.shape[1] > MAX_TAPS:
            raise UnsupportedOpError(f"supports convolutions over at most {MAX_TAPS} tokens")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        width, taps = self.weight.shape
        [source], target = values.over_columns(self, (width,), width, in_place=True)

        def record(weights: CpuWeights) -> ConvolveRecord:
            return ConvolveRecord(
                weight=weights.keep(weights.reader.read(self.weight).float().t().contiguous()),
                bias=weights.floats(self.bias),
                source=source,
                state=self.state,
                target=target,
                width=width,
                taps=taps,
                activation=activation_of(self.activation),
            )

        yield CpuOp(self.kind, record)


def _alone(states: States, state: int, x: Tensor, kernel: Tensor, taps: int) -> Tensor:
    """Convolve one row of each sequence: [S, width] -> float32 [S, width]."""
    window = torch.cat([states.read(state), x.unsqueeze(1)], 1)
    states.write(state, window[:, 1:])
    return (window * kernel).sum(1)


def _together(states: States, state: int, x: Tensor, kernel: Tensor, taps: int) -> Tensor:
    """Convolve all rows of all sequences, each with its state: [T, width] -> float32 [T, width]."""
    before = states.read(state)
    window = states.spans.window(taps - 1)
    rows = x.new_empty(len(x) + before.shape[0] * (taps - 1), x.shape[1])
    rows.index_copy_(0, window.before, before.flatten(0, 1))
    rows.index_copy_(0, window.rows, x)
    states.write(state, rows.index_select(0, window.last).view_as(before))
    count = len(rows) - taps + 1
    y = rows[:count] * kernel[0]
    for tap in range(1, taps):
        y.addcmul_(rows[tap : tap + count].float(), kernel[tap])
    return y.index_select(0, window.rows - (taps - 1))
