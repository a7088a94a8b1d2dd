"""Attention over keys and values that another layer has written."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.attend import seen
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import AttentionShape


@dataclass(frozen=True, slots=True)
class AttendShared:
    """Attends over the cache of a layer that an earlier op of the step has written to. Reads queries [T, heads x D]."""

    layer: int
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ATTENTION

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: queries in and out, keys and values of each context read once."""
        read, pairs = seen(self.shape, rows.spans)
        queries, keys = self.shape.query_width, self.shape.key_width
        return OpCost((2 * rows.count * queries + 2 * read * keys) * size, 4 * queries * pairs)

    def row_bytes(self, size: int) -> int:
        """See Op: the queries, and what comes of them."""
        return 2 * self.shape.query_width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        layer, heads = self.layer, self.shape.heads

        def run(step: Step, queries: Tensor) -> Tensor:
            return step.attention(layer, queries.view(len(queries), heads, -1), None, None).flatten(1)

        return run
