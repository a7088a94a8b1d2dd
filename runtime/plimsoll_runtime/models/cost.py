"""What a step must move and multiply at least, op by op: the numbers that measured times are held against.

Bytes are those of a perfect machine: every weight is read once a step, a sequence's keys and values once a layer, and
each op's input and output pass once, in the model's own dtype. Operations count a multiplication and an addition as
two; what a causal mask or a window hides is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from plimsoll_runtime.engine.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.spec import AttentionShape, DecoderSpec

FLOAT32 = 4
"""Bytes of an element of a norm, a bias and the logits, whatever the model runs in."""
NORM_FLOPS = 4
"""For each element: square, add, scale, weight."""
ROTATION_FLOPS = 3
"""For each element: two multiplications and an addition."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Bytes through memory and floating point operations."""

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, times: int) -> OpCost:
        return OpCost(self.bytes * times, self.flops * times)


def step_cost(spec: DecoderSpec, plan: StepPlan, element_bytes: int) -> dict[OpKind, OpCost]:
    """The cost of each op of a step, all layers together. The head is missing where no row needs logits."""
    rows, hidden, size = plan.num_tokens, spec.hidden_size, element_bytes
    costs = dict.fromkeys(OpKind, OpCost())
    costs[OpKind.EMBED] = OpCost(2 * rows * hidden * size)
    norms = spec.num_layers * (4 if spec.post_norms else 2) + 1
    costs[OpKind.NORM] = _norm(rows, hidden, size) * norms
    mlp = {
        OpKind.GATE_UP: _gate_up(spec, rows, size),
        OpKind.DOWN: _product(rows, spec.intermediate_size, hidden, size, spec.mlp_bias),
    }
    for shape, layers in Counter(spec.attention).items():
        own = _attention_ops(spec, shape, plan.sequences, rows, size)
        for kind, cost in (own | mlp).items():
            costs[kind] += cost * layers
    logits = sum(s.sample + len(s.prompt_targets) for s in plan.sequences)
    del costs[OpKind.HEAD]
    if logits:
        head = _product(logits, hidden, spec.vocab_size, size, biased=False)
        costs[OpKind.HEAD] = head + OpCost(logits * spec.vocab_size * (FLOAT32 - size))
    return costs


def total(costs: Iterable[OpCost]) -> OpCost:
    """All of them together."""
    return sum(costs, OpCost())


def _attention_ops(
    spec: DecoderSpec, shape: AttentionShape, sequences: Iterable[ScheduledSequence], rows: int, size: int
) -> dict[OpKind, OpCost]:
    """One layer's."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    turned = rows * (queries + keys)
    rope_flops = ROTATION_FLOPS + (NORM_FLOPS if spec.qk_norm else 0)
    return {
        OpKind.QKV: _product(rows, spec.hidden_size, queries + 2 * keys, size, spec.qkv_bias),
        OpKind.ROPE: OpCost(2 * turned * size, rope_flops * turned),
        OpKind.ATTENTION: _attention(shape, sequences, rows, size),
        OpKind.OUTPUT: _product(rows, queries, spec.hidden_size, size, spec.output_bias),
    }


def _attention(shape: AttentionShape, sequences: Iterable[ScheduledSequence], rows: int, size: int) -> OpCost:
    """Rows of queries in and out, new keys and values written, those of each context read once."""
    read = pairs = 0
    for sequence in sequences:
        start, end = sequence.start, sequence.start + len(sequence.token_ids)
        window = end if shape.window is None else shape.window
        read += end - max(0, start - window + 1)
        pairs += _seen(end, window) - _seen(start, window)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return OpCost((2 * rows * queries + 2 * (rows + read) * keys) * size, 4 * queries * pairs)


def _seen(end: int, window: int) -> int:
    """Tokens seen by the queries at positions 0 .. end - 1, each counting itself."""
    growing = min(end, window)
    return growing * (growing + 1) // 2 + (end - growing) * window


def _product(rows: int, inputs: int, outputs: int, size: int, biased: bool) -> OpCost:
    bias = outputs * FLOAT32 if biased else 0
    return OpCost((inputs * outputs + rows * (inputs + outputs)) * size + bias, 2 * rows * inputs * outputs)


def _gate_up(spec: DecoderSpec, rows: int, size: int) -> OpCost:
    """Two weights of one shape; what leaves is gate times up, half as wide as the product."""
    inner = spec.intermediate_size
    both = _product(rows, spec.hidden_size, 2 * inner, size, spec.mlp_bias)
    return both + OpCost(-rows * inner * size)


def _norm(rows: int, width: int, size: int) -> OpCost:
    return OpCost(2 * rows * width * size + width * FLOAT32, NORM_FLOPS * rows * width)
