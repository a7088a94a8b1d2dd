"""The gated delta rule (Yang et al., 2024): a linear recurrence whose state decays and is corrected by each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.columns_records import MAX_KEY_DIM, DeltaRuleRecord
from plimsoll_runtime.models.layers.states import scanned
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.mamba2_scan import between
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values, states_of
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.recurrent import DeltaShape, StateShape

ROWS = 64
"""Rows of a sequence computed at a time: a triangular system of this size for each head."""
EPS = 1e-6
"""Epsilon in the norm of queries and keys."""


@dataclass(frozen=True, slots=True)
class DeltaRule(Op):
    """h = e h, then h += k (b (v - h^T k))^T, y = h^T q, in float32; h is [key_dim, value_dim] for each value head.

    Reads queries, keys and values side by side, then for each value head the write strength [T, heads] and the decay
    step [T, heads]. b = sigmoid(write); e = exp(-exp(`decay`) softplus(step + `step_bias`)). Queries and keys are
    scaled to length 1, queries also divided by the root of `key_dim`. Several value heads share a key head.
    """

    state: int
    shape: DeltaShape
    decay: Weight
    step_bias: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("state", "shape", "decay", "step_bias")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    @property
    def keeps(self) -> StateShape:
        return StateShape((self.shape.value_heads, self.shape.key_dim, self.shape.value_dim), wide=True)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: rows in and out, each sequence's state read and written once, operations as for single
        rows.
        """
        shape = self.shape
        moved = rows.count * (shape.mixed + 2 * shape.value_heads + shape.values) * size
        return OpCost(
            moved + 2 * rows.sequences * self.keeps.nbytes(size) + 2 * shape.value_heads * FLOAT32,
            7 * rows.count * shape.values * shape.key_dim,
        )

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the inputs in float32, the repeated queries and keys, the triangular systems and the
        results.
        """
        shape = self.shape
        each = 6 * shape.key_dim + 6 * shape.value_dim + 4 * ROWS
        return (2 * shape.mixed + shape.value_heads * each) * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        state, shape = self.state, self.shape
        decay, bias = -weights.read(self.decay).float().exp(), weights.read(self.step_bias).float()

        def scan(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
            return (_one_row if values[0].shape[1] == 1 else _rows)(values, before)

        def run(step: Step, mixed: Tensor, writes: Tensor, times: Tensor) -> Tensor:
            query, key, value = torch.split(mixed.float(), [shape.keys, shape.keys, shape.values], dim=-1)
            query, key = (_unit(each.view(-1, shape.key_heads, shape.key_dim)) for each in (query, key))
            value = value.view(-1, shape.value_heads, shape.value_dim)
            decays = decay * functional.softplus(times.float() + bias)
            learned = writes.float().sigmoid()
            if shape.in_turns:
                value, decays, learned = (_side_by_side(each, shape) for each in (value, decays, learned))
            values = [query * shape.key_dim**-0.5, key, value, decays, learned]
            found = scanned(states_of(step), state, ROWS, scan, values)
            if shape.in_turns:
                found = found.reshape(len(found), shape.key_heads, -1, shape.value_dim).transpose(1, 2)
            return found.flatten(1).to(mixed.dtype)

        return run

    def check_cpu(self) -> None:
        if self.shape.key_dim > MAX_KEY_DIM:
            raise UnsupportedOpError(f"supports delta rules with at most {MAX_KEY_DIM} key dimensions")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        shape = self.shape
        widths = (shape.mixed, shape.value_heads, shape.value_heads)
        [mixed, writes, times], target = values.over_columns(self, widths, shape.values, in_place=False)

        def record(weights: CpuWeights) -> DeltaRuleRecord:
            return DeltaRuleRecord(
                decay=weights.decay(self.decay),
                step_bias=weights.floats(self.step_bias),
                mixed=mixed,
                writes=writes,
                times=times,
                state=self.state,
                target=target,
                key_heads=shape.key_heads,
                value_heads=shape.value_heads,
                key_dim=shape.key_dim,
                value_dim=shape.value_dim,
                in_turns=shape.in_turns,
            )

        yield CpuOp(self.kind, record)


def _side_by_side(heads: Tensor, shape: DeltaShape) -> Tensor:
    """Reorder alternating value heads [T, heads, ...], so that those of a key head are adjacent."""
    turns = heads.view(len(heads), -1, shape.key_heads, *heads.shape[2:])
    return turns.transpose(1, 2).flatten(1, 2)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def _one_row(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one row of q, k [B, 1, key_heads, key_dim], v [B, 1, heads, value_dim], log e, b [B, 1, heads]. See
    Scan.
    """
    query, key, value, decays, learned = (each.squeeze(1) for each in values)
    repeats = value.shape[1] // key.shape[1]
    query, key = (each.repeat_interleave(repeats, 1) for each in (query, key))
    state = before * decays.exp()[..., None, None]
    answer = (key.unsqueeze(-2) @ state).squeeze(-2)
    missing = (value - answer) * learned.unsqueeze(-1)
    state.addcmul_(key.unsqueeze(-1), missing.unsqueeze(-2))
    return (query.unsqueeze(-2) @ state).transpose(1, 2), state


def _rows(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Q rows like `_one_row`. Their writes depend on each other and are the solution of a triangular system."""
    query, key, value, decays, learned = (each.transpose(1, 2) for each in values)
    repeats = value.shape[1] // key.shape[1]
    query, key = (each.repeat_interleave(repeats, 1) for each in (query, key))
    total = decays.cumsum(-1)
    last, kept = total[..., -1:], total.exp().unsqueeze(-1)
    left = between(total)
    told = key * learned.unsqueeze(-1)
    system = (told @ key.transpose(2, 3)) * left
    wanted = torch.cat([value * learned.unsqueeze(-1), told * kept], -1)
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    own, seen = torch.split(solved, [value.shape[-1], key.shape[-1]], dim=-1)
    written = own - seen @ before
    results = (query * kept) @ before + ((query @ key.transpose(2, 3)) * left) @ written
    faded = key * (last - total).exp().unsqueeze(-1)
    return results.transpose(1, 2), before * last.exp().unsqueeze(-1) + faded.transpose(2, 3) @ written
