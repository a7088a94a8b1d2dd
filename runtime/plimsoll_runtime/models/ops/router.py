"""Routers: choose each token's experts and their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import SCORE_ROWS, WIDEST, RouteRecord, Rule
from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.norm import read
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.feed_forward import Routing, SparseMixer, TopK

INT64 = 8
COPIES = 4
"""Copies of the scores: logits, scores, corrected scores, and those of open groups."""


@dataclass(frozen=True, slots=True)
class Route(Op):
    """Writes weights, float32 [T, chosen], and expert numbers, int64 [T, chosen].

    Scores are float32 in any run: rounding them could change the chosen experts. `weight` is [experts, hidden];
    `correction`, `bias` and `scales` are [experts] or None.
    """

    routing: Routing
    chosen: int
    weight: Weight
    correction: Weight | None
    reads: Values
    writes: Values
    bias: Weight | None = None
    scales: Weight | None = None
    kind: OpKind = OpKind.ROUTE
    cpu_fields: ClassVar = ("routing", "chosen", "weight", "correction", "bias")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        experts, hidden = self.weight.shape
        kept = (experts * hidden + experts * (len(self.weights()) - 1)) * FLOAT32
        passed = rows.count * (hidden * size + self.chosen * (FLOAT32 + INT64))
        return OpCost(kept + passed, 2 * rows.count * hidden * experts)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the states in float32 and of the scores."""
        experts, hidden = self.weight.shape
        return (hidden + COPIES * experts) * FLOAT32 + self.chosen * (FLOAT32 + INT64)

    def compiled(self, weights: Weights) -> Run:
        linear = Linear(weights.read(self.weight), read(self.bias, weights))
        correction, scales = read(self.correction, weights), read(self.scales, weights)
        routing, chosen = self.routing, self.chosen

        def run(step: Step, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = linear(x.float())
            if isinstance(routing, SparseMixer):
                return by_sparse_mixer(routing, logits, chosen)
            shares, numbers = by_top_k(routing, logits, chosen, correction)
            return (shares if scales is None else shares * scales[numbers]), numbers

        return run

    def check_cpu(self) -> None:
        match self.routing:
            case TopK() as rule:
                known = ("scores", "renormalised", "corrected", "groups", "open_groups", "best", "least", "scale")
                check_known(rule, *known)
                if rule.scores.upper() not in Rule.__members__:
                    raise UnsupportedOpError(f"does not support the scores {rule.scores}")
            case SparseMixer() as rule:
                check_known(rule, "jitter")
                if self.correction is not None:
                    raise UnsupportedOpError("does not support a correction of SparseMixer scores")
            case _:
                raise UnsupportedOpError(f"does not support the routing {type(self.routing).__name__}")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        experts, hidden = self.weight.shape
        source = values.floats(self.reads[0], hidden)
        values.at += 1
        scores = values.scratch("scores", SCORE_ROWS * -(-experts // WIDEST) * WIDEST, operands=False)
        shares, numbers = (values.written(name, self.chosen, operands=False, apart=[source]) for name in self.writes)

        def record(weights: CpuWeights) -> RouteRecord:
            found = RouteRecord(
                weight=weights.table(self.weight),
                bias=weights.floats(self.bias),
                correction=weights.floats(self.correction),
                source=source,
                scores=scores,
                shares=shares,
                numbers=numbers,
                hidden=hidden,
                experts=experts,
                chosen=self.chosen,
                rule=Rule.SPARSE_MIXER,
            )
            if isinstance(rule := self.routing, TopK):
                found.rule = Rule[rule.scores.upper()]
                found.groups, found.open_groups, found.best = rule.groups, rule.open_groups, rule.best
                found.renormalised, found.least, found.scale = rule.renormalised, rule.least, rule.scale
            else:
                found.jitter = rule.jitter
            return found

        yield CpuOp(self.kind, record)


def by_top_k(routing: TopK, logits: Tensor, chosen: int, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weights and expert numbers, both [T, chosen], for logits float32 [T, experts]."""
    scores = logits.softmax(dim=-1) if routing.scores == "softmax" else logits.sigmoid()
    ranked = scores if correction is None else scores + correction
    if routing.open_groups < routing.groups:
        ranked = in_open_groups(routing, ranked)
    numbers = ranked.topk(chosen, dim=-1).indices
    weights = scores.gather(1, numbers)
    if routing.renormalised:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=routing.least)
    return (weights if routing.scale == 1.0 else weights * routing.scale), numbers


def in_open_groups(routing: TopK, ranked: Tensor) -> Tensor:
    """Return scores [T, experts] with -inf for experts outside the `open_groups` best groups (see TopK)."""
    groups = ranked.view(ranked.shape[0], routing.groups, -1)
    of_groups = groups.topk(routing.best, dim=-1).values.sum(dim=-1)
    is_open = torch.zeros_like(of_groups, dtype=torch.bool)
    is_open.scatter_(1, of_groups.topk(routing.open_groups, dim=-1).indices, value=True)
    return groups.masked_fill(~is_open[..., None], float("-inf")).flatten(1)


def by_sparse_mixer(routing: SparseMixer, logits: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    """Return weights and expert numbers, both [T, chosen], for logits float32 [T, experts]."""
    left, weights, numbers = logits, [], []
    for _ in range(chosen):
        highest, number = left.max(dim=-1, keepdim=True)
        behind = (highest - logits) / logits.abs().clamp(min=highest)
        shares = left.masked_fill(behind > 2 * routing.jitter, float("-inf")).softmax(dim=-1)
        weights.append(shares.gather(1, number))
        numbers.append(number)
        left = left.scatter(1, number, float("-inf"))
    return torch.cat(weights, dim=1), torch.cat(numbers, dim=1)
