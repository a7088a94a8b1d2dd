"""What is done to the heads of values before attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, StepRows
from plimsoll_runtime.models.ops.normalise import FLOPS, Normaliser
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class NormValues:
    """A norm without weights over each head of values; queries and keys pass. Writes [T, heads + 2 kv_heads, D].

    `of_keys`: no values are read, and keys as they are read are normed in their place.
    """

    norm: Norm
    shape: AttentionShape
    reads: Values
    writes: Values
    of_keys: bool = False
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: values in and out."""
        elements = rows.count * self.shape.key_width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """See Op: what is read, the values in float32 and normed, and all of it side by side."""
        whole = self.shape.query_width + 2 * self.shape.key_width
        return (2 * whole + self.shape.key_width) * size + 2 * self.shape.key_width * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        shape, normaliser = self.shape, Normaliser(self.norm.kind, self.norm.eps, None)
        kept = shape.heads + shape.kv_heads
        first = shape.heads if self.of_keys else kept

        def run(step: Step, heads: Tensor) -> Tensor:
            each = heads.view(len(heads), -1, shape.head_dim)
            return torch.cat([each[:, :kept], normaliser(each[:, first:])], dim=1).flatten(1)

        return run
