"""Tokens to rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


@dataclass(frozen=True, slots=True)
class Embed:
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

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.table,) if self.texts is None else (self.table, self.texts)

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


@dataclass(frozen=True, slots=True)
class AddPositions:
    """x + table[position + first]. `table` [positions, hidden]."""

    table: Weight
    first: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.table,)

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


@lru_cache(256)
def rounded(scale: float, dtype: torch.dtype) -> float:
    """A scale as the dtype of the run has it."""
    return float(torch.tensor(scale).to(dtype))
