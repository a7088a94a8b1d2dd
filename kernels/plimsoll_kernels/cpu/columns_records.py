"""Records of the ops over columns of rows, and of those with a recurrent state for each sequence. See op_records.py."""

# Without future annotations: annotations of records are read as types, and evaluating strings takes milliseconds.

from plimsoll_kernels.cpu.c_records import CRecord, Float, Floats, Int, c_record
from plimsoll_kernels.cpu.op_records import Activation, AnyOp

MAX_TAPS, MAX_KEY_DIM, MAX_STATES = 16, 256, 256
"""The most taps of a convolution, dimensions of a key head in the delta rule, and states of a column in Mamba's
scan.
"""


@c_record
class PartRecord(CRecord):
    """The columns from `first` on of the values in the buffer number `place` (see op_records.py)."""

    place: Int
    first: Int


@c_record
class ScaleRecord(AnyOp):
    """target = source x factors, column by column."""

    factors: Floats  # [width]; None: all are 1
    source: PartRecord
    target: Int
    width: Int


@c_record
class MultiplyRecord(AnyOp):
    """target = source x activation(gate); the source may be operands."""

    source: PartRecord
    gate: PartRecord
    target: Int
    width: Int
    activation: Activation


@c_record
class ConvolveRecord(AnyOp):
    """A causal convolution of each column: target[t] = activation(sum over k of weight[k] x source[t - taps + 1 + k] +
    bias). The source is rounded to elements first. The state of a sequence is its last taps - 1 rows of the source,
    elements of `width` columns.
    """

    weight: Floats  # [taps, width]
    bias: Floats  # [width]
    source: PartRecord
    state: Int
    target: Int
    width: Int
    taps: Int
    activation: Activation


@c_record
class GatedNormRecord(AnyOp):
    """target = norm(source) x silu(gate) if the gate is applied `after`, else norm(source x silu(gate)).

    The root mean squares norm applies to each of `groups` groups of columns separately.
    """

    weight: Floats  # [width]
    source: PartRecord
    gate: PartRecord
    target: Int
    width: Int
    groups: Int
    after: Int
    eps: Float


@c_record
class DualScanRecord(AnyOp):
    """Mamba 2's scan: h = e^(d A) h + d x B^T, y = h C + D x, for each head, with d = softplus(times + step_bias)
    clamped to [least, most].

    `mixed` has x [heads, head_dim], then B and C [groups, width]; `times` a number for each head. The state of a
    sequence is h, floats [heads, head_dim, width].
    """

    decay: Floats  # [heads] A
    skip: Floats  # [heads] D
    step_bias: Floats  # [heads]
    mixed: PartRecord
    times: PartRecord
    state: Int
    target: Int
    heads: Int
    head_dim: Int
    groups: Int
    width: Int
    least: Float
    most: Float


@c_record
class DeltaRuleRecord(AnyOp):
    """The gated delta rule, for each head of values: h = e h, h += k (b (v - h^T k))^T, y = h^T q.

    Here e = e^(A softplus(times + step_bias)) and b = sigmoid(writes).

    `mixed` has queries and keys [key_heads, key_dim], normalised to length 1, queries divided by the root of key_dim,
    then values [value_heads, value_dim]. Value heads that share a key head are adjacent or, if `in_turns`, interleaved.
    The state of a sequence is h, floats [value_heads, key_dim, value_dim].
    """

    decay: Floats  # [value_heads] A
    step_bias: Floats  # [value_heads]
    mixed: PartRecord
    writes: PartRecord
    times: PartRecord
    state: Int
    target: Int
    key_heads: Int
    value_heads: Int
    key_dim: Int
    value_dim: Int
    in_turns: Int


@c_record
class SelectiveScanRecord(AnyOp):
    """Mamba's selective scan: h = e^(d A) h + d x B, y = h C + D x, for each column, with d = softplus(times +
    step_bias).

    `inputs` is B, `outputs` C [count]. The state of a sequence is h, floats [count, width].
    """

    decay: Floats  # A [count, width]
    skip: Floats  # [width] D
    step_bias: Floats  # [width]
    source: PartRecord
    times: PartRecord
    inputs: PartRecord
    outputs: PartRecord
    state: Int
    target: Int
    width: Int
    count: Int


@c_record
class GatedRecurrenceRecord(AnyOp):
    """Griffin's gated recurrence, for each column: h = a h + root(1 - a^2) i x, and h = i x at a first token; y = h.

    Here a = e^(decay r). The gates are r = sigmoid(x recurrent + recurrent_bias), block by block, and i likewise with
    `inputs`. The state of a sequence is h, floats [width].
    """

    decay: Floats  # [width]
    recurrent: Floats  # [heads, width / heads, width / heads]
    inputs: Floats
    recurrent_bias: Floats  # [width]
    inputs_bias: Floats
    source: PartRecord
    state: Int
    gates: Int  # scratch, floats [rows, 2, width]
    target: Int
    width: Int
    heads: Int
