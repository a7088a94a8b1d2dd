"""Embeddings of tokens and positions."""

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
    """x = scale * table[tokens], with the scale rounded to the run's dtype. `table` [vocab, hidden].

    `partial`: tokens beyond the table's last row use its first row. `texts` [texts, hidden]: token-type embeddings; the
    row of a token's text is added. Token ids of a prompt's second text have an offset of the vocabulary size, those of
    a third of twice that. `first`: the table is one rank's part of the vocabulary, from this token on; x is zero for
    other tokens.
    """

    table: Weight
    writes: Values
    scale: float | None = None
    partial: bool = False
    texts: Weight | None = None
    first: int | None = None
    kind: OpKind = OpKind.EMBED
    reads: Values = ()
    cpu_fields: ClassVar = ("table", "scale", "texts", "first")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost(2 * rows.count * self.table.shape[1] * size)

    def row_bytes(self, size: int) -> int:
        return 2 * self.table.shape[1] * size

    def compiled(self, weights: Weights) -> Run:
        table = weights.read(self.table, keep=True)
        if self.texts is not None:
            return self._with_texts(table, weights.read(self.texts, keep=True))
        scale = None if self.scale is None else rounded(self.scale, table.dtype)
        if self.first is not None:
            return self._of_part(table, self.first, scale)
        beyond = len(table) if self.partial else None

        def run(step: Step) -> Tensor:
            tokens = step.token_ids
            rows = functional.embedding(tokens if beyond is None else tokens * (tokens < beyond), table)
            return rows if scale is None else rows * scale

        return run

    @staticmethod
    def _of_part(table: Tensor, first: int, scale: float | None) -> Run:
        def run(step: Step) -> Tensor:
            tokens = step.token_ids - first
            missing = (tokens < 0) | (tokens >= len(table))
            rows = functional.embedding(tokens.masked_fill_(missing, 0), table).masked_fill_(missing[:, None], 0.0)
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
        if self.texts is not None and self.scale is not None:
            raise UnsupportedOpError("does not support a scale of embeddings with text rows")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, which must be the first."""
        if values.at:
            raise UnsupportedOpError("supports Embed only as the first op")
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
                first=self.first or 0,
                vocab=vocab,
                scale=1.0 if self.scale is None else rounded(self.scale, weights.dtype),
            )

        yield CpuOp(OpKind.EMBED, record)


@dataclass(frozen=True, slots=True)
class AddPositions(Op):
    table: Weight
    first: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED
    cpu_fields: ClassVar = ("table", "first")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost(rows.count * self.table.shape[1] * size, rows.count * self.table.shape[1])

    def row_bytes(self, size: int) -> int:
        return 2 * self.table.shape[1] * size

    def compiled(self, weights: Weights) -> Run:
        table, first = weights.read(self.table, keep=True), self.first

        def run(step: Step, x: Tensor) -> Tensor:
            return x + functional.embedding(step.positions + first, table)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        rows, width = self.table.shape
        if self.reads != self.writes or self.first < 0 or self.first + values.positions > rows:
            raise UnsupportedOpError(f"needs a row in {self.table} for each of {values.positions} positions")
        target = values.floats(self.reads[0], width)
        values.changed(self.reads[0], width, target)
        values.at += 1

        def record(weights: CpuWeights) -> PositionsRecord:
            return PositionsRecord(table=weights.table(self.table), target=target, width=width, first=self.first)

        yield CpuOp(self.kind, record)


@lru_cache(256)
def rounded(scale: float, dtype: torch.dtype) -> float:
    """Return a scale rounded to a dtype."""
    return float(torch.tensor(scale).to(dtype))
