"""Attention over one vector a token, of which all heads' keys and values are made (DeepSeek-AI, 2024).

Keys and values are not made: a query times W_k c is (query W_k) times c, and weights times W_v c are W_v times the
weighed sum of c. So what makes keys is put into the queries, attention is over the vectors themselves, and what makes
values comes behind it. `up` [heads x (plain + value), rank] has W_k and W_v of each head, one below the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.rope import rotate
from plimsoll_runtime.models.ops.attention import seen
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.heads import ROTATION_FLOPS, growing
from plimsoll_runtime.models.ops.norm import FLOPS, Normaliser, scale_of
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import LatentAttention


@dataclass(frozen=True, slots=True)
class Latent:
    """The vector that is kept: norms its first `rank` numbers and turns the others. [T, rank + turned] -> the same."""

    attention: LatentAttention
    norm: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.norm,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        rank, turned = self.attention.rank, self.attention.rope.head_dim
        flops = rows.count * (FLOPS * rank + ROTATION_FLOPS * turned)
        return OpCost(2 * rows.count * (rank + turned) * size + rank * FLOAT32, flops)

    def row_bytes(self, size: int) -> int:
        """See Op: the vector and its parts, and its norm in float32."""
        width = self.attention.rank + self.attention.rope.head_dim
        return 3 * width * size + 3 * self.attention.rank * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        norm, rope = self.attention.norm, self.attention.rope
        normaliser = Normaliser(norm.kind, norm.eps, scale_of(norm, self.norm, weights), None)
        sizes = [self.attention.rank, rope.head_dim]

        def run(step: Step, latent: Tensor) -> Tensor:
            plain, turning = torch.split(latent, sizes, dim=1)
            turned = rotate(turning[:, None], *step.turns[rope], pairs=rope.pairs)[:, 0]
            return torch.cat([normaliser(plain), turned], dim=1)

        return run


@dataclass(frozen=True, slots=True)
class Absorb:
    """Queries as they are compared with the vectors: [T, heads x (plain + turned)] -> [T, heads x (rank + turned)]."""

    attention: LatentAttention
    up: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.QKV

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.up,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: of the matrix what makes keys."""
        own, turned = self.attention, self.attention.rope.head_dim
        matrix = own.heads * own.plain * own.rank
        passed = own.heads * (own.plain + own.rank + 2 * turned)
        flops = 2 * matrix + own.heads * turned * ROTATION_FLOPS
        return OpCost((matrix + rows.count * passed) * size, rows.count * flops)

    def row_bytes(self, size: int) -> int:
        """See Op: both parts of the queries, each as it was and as it is, and the result."""
        own, turned = self.attention, self.attention.rope.head_dim
        return own.heads * (own.plain + 3 * own.rank + 4 * turned) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        own = self.attention
        keys = by_head(own, weights.read(self.up, keep=True))[:, : own.plain]

        def run(step: Step, queries: Tensor) -> Tensor:
            each = queries.view(len(queries), own.heads, -1)
            if own.growth is not None:
                each = each * growing(own.growth, step, each.dtype)
            plain, turning = torch.split(each, [own.plain, own.rope.head_dim], dim=-1)
            absorbed = torch.bmm(plain.transpose(0, 1), keys).transpose(0, 1)
            turned = rotate(turning, *step.turns[own.rope], pairs=own.rope.pairs)
            return torch.cat([absorbed, turned], dim=-1).flatten(1)

        return run


@dataclass(frozen=True, slots=True)
class AttendLatent:
    """Writes vectors to a layer's cache, then attends to them: [T, heads x (rank + turned)] -> [T, heads x rank].

    Reads queries and vectors.
    """

    layer: int
    attention: LatentAttention
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ATTENTION

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: queries in and out, new vectors written, those of each context read once for all heads."""
        own, width = self.attention, self.attention.shape.head_dim
        read, pairs = seen(own.shape, rows.spans)
        passed = rows.count * own.heads * (width + own.rank) + (rows.count + read) * width
        return OpCost(passed * size, 2 * own.heads * (width + own.rank) * pairs)

    def row_bytes(self, size: int) -> int:
        """See Op: queries and results in the order of attention's tiles, the result, and what is left of it."""
        return 4 * self.attention.shape.query_width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        layer, heads, rank = self.layer, self.attention.heads, self.attention.rank

        def run(step: Step, queries: Tensor, latent: Tensor) -> Tensor:
            vector = latent[:, None]
            found = step.attention(layer, queries.view(len(queries), heads, -1), vector, vector)
            return found[..., :rank].flatten(1)

        return run


@dataclass(frozen=True, slots=True)
class Expand:
    """Values of what was attended to: [T, heads x rank] -> [T, heads x value]."""

    attention: LatentAttention
    up: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.OUTPUT

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.up,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: of the matrix what makes values."""
        own = self.attention
        matrix = own.heads * own.value * own.rank
        return OpCost((matrix + rows.count * own.heads * (own.rank + own.value)) * size, 2 * rows.count * matrix)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return self.attention.heads * (self.attention.rank + 2 * self.attention.value) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        own = self.attention
        values = by_head(own, weights.read(self.up, keep=True))[:, own.plain :].transpose(1, 2)

        def run(step: Step, attended: Tensor) -> Tensor:
            each = attended.view(len(attended), own.heads, -1).transpose(0, 1)
            return torch.bmm(each, values).transpose(0, 1).flatten(1)

        return run


def by_head(attention: LatentAttention, weight: Tensor) -> Tensor:
    """`up` as [heads, plain + value, rank]."""
    return weight.view(attention.heads, attention.plain + attention.value, attention.rank)
