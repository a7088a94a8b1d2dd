"""Tokens to rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.op_records import EmbedRecord, PositionsRecord
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """x = table[tokens] x scale, the scale rounded to the dtype of the run. `table` [vocab, hidden].

    `partial`: tokens beyond the table's last row have its first one. `texts` [texts, hidden]: to each token is added
    the row of the text that it belongs to. Token ids of a prompt's second text are larger by the size of the
    vocabulary, those of a third by twice as much.
    """

    table: Weight
    writes: Values
    scale: float | None = None
    partial: bool = False
    texts: Weight | None = None
    kind: OpKind = OpKind.EMBED
    reads: Values = ()
    cpu_fields: ClassVar = ("table", "scale", "texts")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost(2 * rows.count * self.table.shape[1] * size)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * self.table.shape[1] * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        table = weights.read(self.table, keep=True)
        if self.texts is not None:
            return self._with_texts(table, weights.read(self.texts, keep=True))
        scale = None if self.scale is None else rounded(self.scale, table.dtype)
        beyond = len(table) if self.partial else None

        def run(step: Step) -> Tensor:
            tokens = step.token_ids
            rows = functional.embedding(tokens if beyond is None else tokens * (tokens < beyond), table)
            return rows if scale is None else rows * scale

        return run

    @staticmethod
    def _with_texts(table: Tensor, texts: Tensor) -> Run:
        vocab = table.shape[0]

        def run(step: Step) -> Tensor:
            text = step.token_ids // vocab
            return functional.embedding(step.token_ids - vocab * text, table) + functional.embedding(text, texts)

        return run

    def check_cpu(self) -> None:
        """See Op."""
        if self.texts is not None and self.scale is not None:
            raise UnsupportedOpError("scales no rows to which those of texts are added")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """See Op: the first op of all."""
        if values.at:
            raise UnsupportedOpError("computes no Embed there")
        values.at += 1
        vocab, width = self.table.shape
        target = values.written(self.writes[0], width, operands=False)

        def record(weights: CpuWeights) -> EmbedRecord:
            found = weights.embedding
            return EmbedRecord(
                table=None if isinstance(found, PackedLinear) else found.data_ptr(),
                packed=found.weight.data_ptr() if isinstance(found, PackedLinear) else None,
                texts=weights.table(self.texts),
                target=target,
                width=width,
                vocab=vocab,
                scale=1.0 if self.scale is None else rounded(self.scale, weights.dtype),
            )

        yield CpuOp(OpKind.EMBED, record)


@dataclass(frozen=True, slots=True)
class AddPositions(Op):
    """x + table[position + first]. `table` [positions, hidden]."""

    table: Weight
    first: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED
    cpu_fields: ClassVar = ("table", "first")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost(rows.count * self.table.shape[1] * size, rows.count * self.table.shape[1])

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * self.table.shape[1] * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        table, first = weights.read(self.table, keep=True), self.first

        def run(step: Step, x: Tensor) -> Tensor:
            return x + functional.embedding(step.positions + first, table)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """See Op."""
        rows, width = self.table.shape
        if self.reads != self.writes or self.first < 0 or self.first + values.positions > rows:
            raise UnsupportedOpError(f"has no row in {self.table} for each of {values.positions} positions")
        target = values.floats(self.reads[0], width)
        values.changed(self.reads[0], width, target)
        values.at += 1

        def record(weights: CpuWeights) -> PositionsRecord:
            return PositionsRecord(table=weights.table(self.table), target=target, width=width, first=self.first)

        yield CpuOp(self.kind, record)


@lru_cache(256)
def rounded(scale: float, dtype: torch.dtype) -> float:
    """A scale as the dtype of the run has it."""
    return float(torch.tensor(scale).to(dtype))
