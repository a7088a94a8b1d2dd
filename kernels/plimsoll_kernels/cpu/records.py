"""The interface of the library of CPU kernels: a model, a step, and the functions of one instruction set.

Records are declared here, in op_records.py and in columns_records.py, and nowhere in C++: its sources include
`interface()`, which is generated from them whenever the library is compiled.
"""

# Without future annotations: annotations of records are read as types, and evaluating strings takes milliseconds.

import re
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, Self

from plimsoll_kernels.cpu import c_records
from plimsoll_kernels.cpu.c_records import (
    CRecord,
    CType,
    Double,
    Floats,
    Int,
    Integers,
    Long,
    Longs,
    Memory,
    OutFloats,
    OutLongs,
    OutMemory,
    c_record,
    function,
    pointer,
)
from plimsoll_kernels.cpu.columns_records import MAX_KEY_DIM, MAX_STATES, MAX_TAPS
from plimsoll_kernels.cpu.exchange_records import ExchangeStatusRecord
from plimsoll_kernels.cpu.op_records import RESULT, SCORE_ROWS, WIDEST, AnyOp, LinearRecord, ShapeRecord

MAX_PLACES = 32
CONSTANTS = {
    "RESULT": RESULT,
    "SCORE_ROWS": SCORE_ROWS,
    "WIDEST": WIDEST,
    "TAPS": MAX_TAPS,
    "KEY_DIM": MAX_KEY_DIM,
    "STATES": MAX_STATES,
    "PLACES": MAX_PLACES,
}

Addresses = Annotated[Any, CType("void *const *{}", POINTER(c_void_p))]
Strides = Annotated[Any, CType("const int64_t *{}", POINTER(c_int64))]
Groups = Annotated[Any, CType("const int32_t *{}", POINTER(c_int32))]
Turns = Annotated[Any, CType("const float *const *{}", POINTER(c_void_p))]
Seconds = Annotated[Any, CType("double *{}", POINTER(c_double))]
Doubles = Annotated[int | None, c_records.address("const double")]
OutDoubles = Annotated[int | None, c_records.address("double")]
OutIntegers = Annotated[int | None, c_records.address("int32_t")]
States = Annotated[Any, CType("void *const *{}", c_void_p)]


def _name(op: type[AnyOp]) -> str:
    """Return the name of an op in C: gated_norm for GatedNormRecord."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", op.__name__.removesuffix("Record")).lower()


OPS = {_name(op): op for op in AnyOp.__subclasses__()}
"""The records of ops by name, in the order of their numbers."""


class Timed(IntEnum):
    """The kinds of work by which a step's seconds are counted."""

    EMBED = 0
    NORM = 1
    QKV = 2
    ROPE = 3
    ATTENTION = 4
    OUTPUT = 5
    ROUTE = 6
    EXPERTS = 7
    GATE_UP = 8
    DOWN = 9
    STATE = 10
    REDUCE = 11
    STAGE = 12


@c_record
class OpRecord(CRecord):
    """One op of a model: its kind, and the record of an op of that kind."""

    _anonymous_ = ("any",)
    kind: Int  # which of OPS
    timed: Timed
    any: Annotated[Any, c_records.union(OPS)] = None

    @classmethod
    def of(cls, op: AnyOp, timed: Timed) -> Self:
        """Return a copy of one of the ops. Raises TypeError if C++ does not know it."""
        name = _name(type(op))
        if name not in OPS:
            raise TypeError(f"{type(op).__name__} is not in OPS; records.py must import its module")
        found = cls(kind=[*OPS].index(name), timed=timed)
        setattr(found, name, op)
        return found


@c_record
class PlaceRecord(CRecord):
    """A buffer for values in a step's workspace: [rows, width] floats, or operands (source/element.h)."""

    operands: Int  # 0: floats
    width: Int  # of the widest values
    narrowest: Int  # a row of operands is zero from here on when a step begins, because products read it


@c_record
class ModelRecord(CRecord):
    """The ops of a decoder, and the buffers (places) of its values, at most MAX_PLACES."""

    ops: Annotated[Any, pointer(OpRecord)]
    places: Annotated[Any, pointer(PlaceRecord)]
    num_ops: Int
    num_places: Int


@c_record
class CacheRecord(CRecord):
    """The paged cache: for each layer keys and values, elements [kv_heads, num_blocks, block_size x head_dim]. The last
    dimension is contiguous; strides of the others are in elements.
    """

    keys: Addresses
    values: Addresses
    head_strides: Strides  # of each layer
    block_strides: Strides
    groups: Groups  # of each layer: the index of its cache group in a step's groups
    block_size: Int


@c_record
class GroupRecord(CRecord):
    """The tokens of a step in a cache group. Attention counts positions from a table's first token on; a row's position
    for rotary embeddings is larger by the tokens that the group has freed.
    """

    cells: Longs = None  # [rows] block x block_size + offset
    contexts: Integers = None  # [sequences] tokens in the table after this step
    blocks: Integers = None  # block tables, one after the other
    first_blocks: Integers = None  # [sequences] where each table begins


@c_record
class StepRecord(CRecord):
    """The rows of a step, sequence by sequence."""

    rows: Int
    sequences: Int
    tokens: Longs = None  # [rows]
    positions: Longs = None  # [rows]
    turns: Turns = None  # for each rotary embedding [positions, 2, rotated / 2]: cosines, then sines
    groups: Annotated[Any, pointer(GroupRecord)]
    first_rows: Integers  # [sequences + 1]
    hidden: OutMemory = None  # elements [rows, hidden]: the result, normed
    incoming: Floats = None  # [rows, columns] values of the stage before, if there is one
    outgoing: OutFloats = None  # [rows, columns] values for the stage after, if there is one
    workspace: OutMemory = None  # `KernelsRecord.workspace` bytes, aligned to 64
    seconds: Seconds = None  # for each `Timed`, added up over ops; None: nothing is timed
    states: States = None  # a tensor for each state, with a row for each sequence that may have one
    state_rows: Integers = None  # [sequences] the row of each


@c_record
class SamplingRecord(CRecord):
    """Rows of logits and their sampling parameters; `best` and `tokens` are the result. Logits that a mask forbids are
    overwritten with -infinity (NaNs stay).
    """

    rows: Int
    width: Int
    stride: Long  # floats from a row to the next
    logits: OutFloats
    temperature: Floats  # [rows] 0, or no normal float: take the largest logit
    top_k: Integers  # [rows] 0, or at least the width: all
    top_p: Floats  # [rows] 1: all
    min_p: Floats  # [rows] 0: all
    uniform: Annotated[int, c_records.address("const double")]  # [rows] in [0, 1)
    mass: Doubles = None  # [rows] the weight of which top_p alone is a share; None: that of the row
    masked: Integers  # [rows] the index of a row's mask, -1: none; None if no row has one
    masks: Annotated[int | None, c_records.address("const uint32_t")]  # [masks, (width + 31) / 32]: a bit a token
    best: OutFloats  # [rows] the largest logit, NaN if there is one
    tokens: OutLongs  # [rows]
    workspace: OutMemory  # sampling_workspace bytes, aligned to 64


@c_record
class ReportsRecord(CRecord):
    """Rows of logits, a token of each row, and the number of most likely tokens to report."""

    rows: Int
    width: Int
    stride: Long  # floats from a row to the next
    logits: Floats
    tokens: Longs  # [rows]
    alternatives: Integers  # [rows] at most `most`, and the width
    most: Int
    chosen: OutFloats  # [rows] log probabilities of the tokens; NaN if the largest logit is not finite
    ranks: OutLongs  # [rows] 1: no logit is larger
    top_tokens: OutLongs  # [rows, most] the most likely first
    top: OutFloats  # [rows, most] their log probabilities
    workspace: OutMemory  # sampling_workspace bytes, aligned to 64


class Stage(IntEnum):
    """The calls that read the same rows of a rank's logits, in this order."""

    LIST = 0
    WEIGH = 1
    FIND = 2


@c_record
class CandidatesRecord(CRecord):
    """Rows of logits of a part of the vocabulary. Each stage reads the results of those before it.

    Rows with a temperature of 0 are left out after LIST.
    """

    stage: Stage
    rows: Int
    width: Int
    stride: Long  # floats from a row to the next
    most: Int  # columns of `values` and `listed`
    logits: Floats
    maxima: OutFloats  # [rows, (width + 63) / 64] of each group of 64 tokens
    counts: Integers  # [rows] the candidates of a row, at most `most` and `width`; 0: none
    best: OutFloats  # LIST: [rows] the largest logit, NaN if there is one
    tokens: OutLongs  # LIST: [rows] the first token of the largest logit; FIND: the token found
    values: OutFloats  # LIST: [rows, most] the largest logits, of equal ones the first, in the vocabulary's order
    listed: OutIntegers  # LIST: [rows, most] their tokens
    temperature: Floats = None  # WEIGH, FIND: [rows]
    min_p: Floats = None  # [rows] the least weight that counts
    largest: Floats = None  # [rows] the logit to which weights are relative
    bound: Floats = None  # WEIGH: [rows]
    mass: OutDoubles = None  # WEIGH: [rows] the row's weight
    above: OutDoubles = None  # WEIGH: [rows] the weight of candidates above `bound`
    target: Doubles = None  # FIND: [rows] the cumulative weight that the token exceeds; below 0: none
    workspace: OutMemory  # sampling_workspace bytes, aligned to 64


_Linear, _Shape = Annotated[Any, pointer(LinearRecord)], Annotated[Any, pointer(ShapeRecord)]
_Model, _Cache = Annotated[Any, pointer(ModelRecord)], Annotated[Any, pointer(CacheRecord)]
_Step, _Sampling = Annotated[Any, pointer(StepRecord)], Annotated[Any, pointer(SamplingRecord)]
_Reports = Annotated[Any, pointer(ReportsRecord)]
_Candidates = Annotated[Any, pointer(CandidatesRecord)]
_ATTENTION = (*[Memory] * 3, OutMemory, _Shape, Int, _Cache, _Step, Int)
Call = Callable[..., None]
Number = Callable[..., int]


@c_record
class KernelsRecord(CRecord):
    """The functions of one instruction set (source/kernels.h). The last argument of most is the number of threads."""

    name: Annotated[bytes, CType("const char *{}", c_char_p)]
    lanes: Int
    packed_elements: Annotated[Number, function(Long, Int, Int, Int)]  # of columns, inputs, gated
    pack: Annotated[Call, function(None, Memory, Int, Int, OutMemory, Int)]  # weight, columns, inputs, packed
    pack_gated: Annotated[Call, function(None, Memory, Memory, Int, Int, OutMemory, Int)]
    linear: Annotated[Call, function(None, Memory, Int, _Linear, OutFloats, Int)]  # x, rows, linear, out
    workspace: Annotated[Number, function(Long, _Model, Int, Int)]  # of rows
    forward: Annotated[Number, function(Int, _Model, _Cache, _Step, Int)]  # 0, or the op that failed, counted from 1
    attention_workspace: Annotated[Number, function(Long, Int, Int)]  # of head_dim
    attention: Annotated[Call, function(None, *_ATTENTION)]  # query, key, value, out, shape, layer, cache, step
    sampling_workspace: Annotated[Number, function(Long, Int, Int)]  # of width
    sample: Annotated[Call, function(None, _Sampling, Int)]
    report: Annotated[Call, function(None, _Reports, Int)]
    candidates: Annotated[Call, function(None, _Candidates, Int)]
    peak: Annotated[Callable[[int], float], function(Double, Int)]
    # operations a second of independent multiplications


@cache
def interface() -> str:
    """Return the C++ header of all records. Its `plimsoll_run(op, work)` calls `work` with the record of the op's
    kind.
    """
    kinds = {f"KIND_{name.upper()}": kind for kind, name in enumerate(OPS)}
    cases = "".join(f"\n    case {kind}: return work(op.{name});" for kind, name in enumerate(OPS))
    return f"""{c_records.header({**CONSTANTS, **kinds}, KernelsRecord, ExchangeStatusRecord)}
template <class Work>
inline void plimsoll_run(const PlimsollOp &op, const Work &work) {{
  switch (op.kind) {{{cases}
  }}
}}
"""
