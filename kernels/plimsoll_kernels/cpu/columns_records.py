"""Records of the ops over columns of rows, and of those that keep a state of each sequence. See op_records.py."""

# Without future annotations: those of records are read as types, and evaluating strings takes milliseconds.

from plimsoll_kernels.cpu.c_records import CRecord, Float, Floats, Int, c_record
from plimsoll_kernels.cpu.op_records import Activation, AnyOp

MAX_TAPS, MAX_KEY_DIM, MAX_STATES = 16, 256, 256
"""Of a convolution, of a head's keys in the delta rule, and of a column in Mamba's scan."""


@c_record
class PartRecord(CRecord):
    """Columns of what is at a place, from `first` on."""

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
    """target[t] = activation(sum over k of weight[k] x source[t - taps + 1 + k], + bias), of elements. The state of a
    sequence are its last rows of the source, elements [taps - 1, width].
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
    """target = norm(source) x silu(gate) where the gate comes `after`, else norm(source x silu(gate)): root mean
    squares, each of `groups` of columns by itself.
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
    """h = e^(d A) h + d x B^T, y = h C + D x, of each head, with d = softplus(times + step_bias) cut to [least, most].

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
    """h = e h, h += k (b (v - h^T k))^T, y = h^T q, of each head of values, with e = e^(A softplus(times + step_bias))
    and b = sigmoid(writes).

    `mixed` has queries and keys [key_heads, key_dim], which get length 1, queries over the root of key_dim, then values
    [value_heads, value_dim]. Heads that share one of keys are side by side or, `in_turns`, take turns. The state of a
    sequence is h, floats [value_heads, key_dim, value_dim].
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
    """h = e^(d A) h + d x B, y = h C + D x, of each column, with d = softplus(times + step_bias). `inputs` are B,
    `outputs` C [count]. The state of a sequence is h, floats [count, width].
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
    """h = a h + root(1 - a^2) i x, y = h, of each column, with a = e^(decay r), and h = i x at a first token.

    The gates are r = sigmoid(x recurrent + recurrent_bias), block by block, and i alike. The state of a sequence is h,
    floats [width].
    """

    decay: Floats  # [width]
    recurrent: Floats  # [heads, width / heads, width / heads]
    inputs: Floats
    recurrent_bias: Floats  # [width]
    inputs_bias: Floats
    source: PartRecord
    state: Int
    gates: Int  # floats [rows, 2, width], which nothing else reads
    target: Int
    width: Int
    heads: Int
