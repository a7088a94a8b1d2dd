"""The ops of a model as the kernels read them: each is declared here, and run by `Decoder` (source/decoder.h).

A place is the number of one of the step's buffers (`PlaceRecord`). Floats are [rows, width] of float32; operands are
the inputs of products (source/element.h). Addresses of floats are those of float32 tensors.
"""

# Without future annotations: annotations of records are read as types, and evaluating strings takes milliseconds.

from enum import IntEnum
from typing import Any

from plimsoll_kernels.cpu.c_records import CRecord, Float, Floats, Int, Memory, OutMemory, c_record

RESULT = -1
"""The target that stands for the result of a step, its `hidden`, instead of a place."""
SCORE_ROWS, WIDEST = 4, 16
"""The rows of all experts' scores that a route computes at once, and the lanes of the widest vector."""


class Into(IntEnum):
    """The form of a product's result y.

    FLOATS: y, as floats. SUM: y x scale, added to floats. GATED: activation(gate) x up as operands, if the weight is
    gated. OPERANDS: activation(y), as operands.
    """

    FLOATS = 0
    SUM = 1
    GATED = 2
    OPERANDS = 3


class Activation(IntEnum):
    """The activation of a product or a gate."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2
    GELU = 3
    RELU = 4
    RELU2 = 5
    SIGMOID = 6


class Normed(IntEnum):
    """The kind of a norm: none, root mean square, or layer norm."""

    AS_IS = 0
    RMS = 1
    LAYER = 2


class Rule(IntEnum):
    """The rule by which experts are selected."""

    SOFTMAX = 0
    SIGMOID = 1
    SPARSE_MIXER = 2


@c_record
class LinearRecord(CRecord):
    """y = x W^T + b. The weight is packed (source/panels.h): a gated one holds two weights of `columns` rows, vector by
    vector, and both biases, one after the other.
    """

    weight: Memory
    bias: Floats
    inputs: Int
    columns: Int


@c_record
class ShapeRecord(CRecord):
    """The shape of a layer's attention over the cache: its heads, and the terms of its scores."""

    heads: Int
    kv_heads: Int
    head_dim: Int
    window: Int = 0  # tokens a query sees, itself included; 0: all
    chunk: Int = 0  # a query sees tokens from the last multiple of it on; 0: all
    coarse: Int = 0  # 1: ALiBi's bias is rounded, see scores.h
    whole: Int = 0  # 1: it also sees later tokens, less than `window` away; each sequence is complete in the step
    scale: Float
    softcap: Float = 0.0  # 0: none
    slopes: Floats = None  # [heads] ALiBi: slope x (key's position - query's) is added to scores
    sinks: Floats = None  # [heads] the score of one additional key, whose value is zero
    latent: Int  # if keys are values: the dimensions that are summed, whole vectors; 0: they are not
    apart: Int  # with `latent`: the distance from a head's result to the next, at least `latent`, zeros in between


class AnyOp(CRecord):
    """The base of op records."""

    def __init__(self, **fields: Any) -> None:
        """Raises TypeError for unknown fields, and for missing ones without a default."""
        known = dict(self.c_fields)
        if unknown := sorted(fields.keys() - known.keys()):
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}: it has {', '.join(known)}")
        if missing := [name for name in self.c_required if name not in fields]:
            raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        super().__init__(**fields)


@c_record
class EmbedRecord(AnyOp):
    """target = scale x the table's row of each token, as floats. The first op of every model.

    A rank's table may have a part of the vocabulary; the target of other tokens is zeros.
    """

    table: Memory  # elements [vocab, width], or None: `packed`
    packed: Memory  # the same table packed as a product's weight, for models whose output layer it is as well
    texts: Memory  # None, or elements [texts, width]: the row text token / vocab of a prompt is added
    target: Int
    width: Int
    first: Int = 0  # the token of the first row; 0 with `texts`
    vocab: Int  # rows of the table
    scale: Float


@c_record
class PositionsRecord(AnyOp):
    """target += the table's row of each position; the target is floats."""

    table: Memory  # elements [positions, width]
    target: Int
    width: Int
    first: Int  # the first position's row


@c_record
class NormRecord(AnyOp):
    """y = norm(x); x is floats at `source`, y is written to `target`."""

    weight: Floats = None
    bias: Floats = None
    source: Int
    target: Int
    width: Int
    first: Int = 0  # the first column of both
    adds: Int = 0  # 1: y += norm(x), floats
    norm: Normed
    eps: Float = 0.0


@c_record
class ProductRecord(AnyOp):
    """y = x W^T + b; x is operands."""

    linear: LinearRecord
    source: Int
    target: Int
    into: Into
    activation: Activation
    scale: Float  # of the added result
    limit: Float  # floats are clamped to [-limit, limit]


@c_record
class HeadsRecord(AnyOp):
    """The work between a product and attention: norms over heads, the rotation, queries to operands, keys and values to
    the cache. `source` is floats [rows, heads + 2 kv_heads, head_dim], `target` operands [rows, heads, head_dim].
    """

    shape: ShapeRecord
    query_norm: Floats = None  # over each head
    key_norm: Floats = None
    layer: Int
    source: Int
    target: Int
    norm: Normed = Normed.AS_IS
    norm_step: Int = 0  # distance from a head's norm weight to the next head's; 0: all share one
    turned: Int = 0  # 1: the norm comes after the rotation
    rope: Int  # the index of the step's rotary table; -1: none
    rotated: Int = 0  # the number of rotated dimensions, the first ones
    pairs: Int = 0  # 1: each is paired with its neighbour; 0: with one of the other half
    growth_offset: Int = 0
    eps: Float = 0.0
    growth: Float = 0.0  # queries x (1 + growth x log(1 + floor((position + offset) / every))); 0: unchanged
    growth_every: Float = 0.0


@c_record
class AttendRecord(AnyOp):
    """Queries attend to a layer's keys and values. `source` and `target` are operands [rows, heads, head_dim]; with
    `latent` the target is [rows, heads, apart].
    """

    shape: ShapeRecord
    layer: Int
    source: Int
    target: Int


@c_record
class AddRecord(AnyOp):
    """target = source + added x scale, floats."""

    source: Int
    added: Int
    target: Int
    width: Int
    scale: Float


@c_record
class RouteRecord(AnyOp):
    """Selects the experts of each row and computes their weights. `source` is floats [rows, hidden]. The results are
    floats, too: `shares` [rows, chosen], the weights, and `numbers` [rows, chosen], whose bits are int32. `scores` is
    scratch, about SCORE_ROWS x experts floats a row (see SCORE_ROWS).
    """

    weight: Floats  # [experts, hidden]
    bias: Floats  # [experts] added to logits
    correction: Floats  # [experts] added to scores for the selection of experts
    source: Int
    scores: Int
    shares: Int
    numbers: Int
    hidden: Int
    experts: Int
    chosen: Int
    rule: Rule
    groups: Int = 0
    open_groups: Int = 0  # only this number of groups is used, those whose `best` best experts score most
    best: Int = 0
    renormalised: Int = 0  # 1: shares are divided by their sum, or by `least` if that is larger
    least: Float = 0.0
    scale: Float = 0.0  # of shares, applied last
    jitter: Float = 0.0  # of the sparse mixer


@c_record
class ExpertsRecord(AnyOp):
    """target = the weighted sum of the results of each row's experts x scale, or target += it; both are floats and
    target may be the source. An expert without rows is not read.
    """

    gate_up: LinearRecord  # the first expert's; those of the others follow, as do their biases
    down: LinearRecord
    source: Int
    shares: Int
    numbers: Int
    target: Int
    experts: Int
    chosen: Int
    activation: Activation
    adds: Int  # 1: the result is added to the target
    gated: Int  # 1: gate_up has gates; 0: it has none, and its result is activated
    weighs_inputs: Int  # 1: inputs are weighted instead of results
    scale: Float
    alpha: Float
    limit: Float  # > 0: gates use clamped() of source/activation.h


@c_record
class GateRecord(AnyOp):
    """y = y x sigmoid(x w), one factor for each row; x is floats [rows, inputs] at `source`, y floats at `target`."""

    weight: Floats  # [inputs]
    source: Int
    target: Int
    inputs: Int
    width: Int


@c_record
class LatentRecord(AnyOp):
    """Writes a row's vector of latent attention, floats [rows, rank + turned] at `source`, to the cache: its first
    `rank` numbers normed, the others rotated. Keys and values of all heads are computed from the first; all keys share
    the others.
    """

    weight: Floats  # of the norm, [rank]
    layer: Int
    source: Int
    rank: Int
    turned: Int
    norm: Normed
    rope: Int  # the index of the step's rotary table
    pairs: Int
    eps: Float


@c_record
class AbsorbRecord(AnyOp):
    """Converts queries, floats [rows, heads, plain + turned] at `source`, to the space of latent vectors: operands
    [rows, heads, rank + turned] at `target`. Of each head, `plain` numbers are multiplied by `weight` and the others
    rotated. Scratch at `between`: operands [rows, heads, apart].
    """

    weight: Memory  # packed [rank, plain] of each head, one after the other
    source: Int
    between: Int
    target: Int
    heads: Int
    plain: Int
    rank: Int
    turned: Int
    apart: Int  # a multiple of a tile's steps
    rope: Int
    pairs: Int
    growth_offset: Int = 0
    growth: Float = 0.0  # see HeadsRecord
    growth_every: Float = 0.0


@c_record
class ExpandRecord(AnyOp):
    """Multiplies the results of latent attention, operands [rows, heads, apart] at `source`, by `weight`: operands
    [rows, heads, value] at `target`.
    """

    weight: Memory  # packed [value, rank] of each head, one after the other
    source: Int
    target: Int
    heads: Int
    rank: Int
    value: Int
    apart: Int


@c_record
class ReceiveRecord(AnyOp):
    """target = columns of the step's `incoming` rows, as floats. The first ops of a later stage of a pipeline."""

    target: Int
    width: Int
    first: Int  # the first column
    stride: Int  # columns of a row of `incoming`


@c_record
class SendRecord(AnyOp):
    """Columns of the step's `outgoing` rows = source, as floats. The last ops of a stage before the last."""

    source: Int
    width: Int
    first: Int  # the first column
    stride: Int  # columns of a row of `outgoing`


@c_record
class ReduceRecord(AnyOp):
    """target = scale x the sum of `source` over the ranks of a group, or target += it; both are floats.

    Every rank must run the op with the same rows and width. If the exchange fails, the step ends there.
    """

    exchange: OutMemory  # the `handle` of an exchange (exchange.py)
    source: Int
    target: Int  # may be the source
    width: Int
    adds: Int  # 1: the result is added to the target
    scale: Float
