"""The program of one rank: a program with its weights cut, and the sums over all ranks between its ops.

Queries, keys, values, gates and up projections are cut by rows, output and down projections by columns, experts by the
columns between their two products, the embedding and the output layer by tokens. Everything else is computed whole by
every rank. An op, or a field of one, that this module does not know is rejected, because an op that reads a whole row
must not read a part of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.heads import NormHeads, NormValues, OfHeads, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.logits import Logits, NoLogits
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale, ScaleAll
from plimsoll_runtime.models.ops.split import Columns
from plimsoll_runtime.models.ops.streams import AddToOthers, Average, Correct, JoinInputs, Predict, Spread
from plimsoll_runtime.models.ops.weight import Range, Weight
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm
from plimsoll_runtime.parallel.layout import HeadRanges, heads_of, share, vocabulary_parts

ADVICE = "serve it with one rank (--tensor-parallel 1 --pipeline-parallel 1)"

ROW_BY_ROW = (
    *(Embed, AddPositions, Normalise, Add, Scale, ScaleAll, Multiply, Route, Gate, Columns),
    *(Spread, Average, AddToOthers, Predict, Correct, JoinInputs),
)
"""Ops that every rank computes whole if it has all columns of their inputs."""

_KNOWN: Mapping[type[object], tuple[str, ...]] = {
    Product: ("parts", "biases", "activation", "clip"),
    GatedProduct: ("parts", "biases", "activation"),
    Experts: (
        *("chosen", "gate_up", "down", "activation", "clamped", "gate_up_biases", "down_biases"),
        *("weighs_inputs", "gated"),
    ),
    NormHeads: ("norm", "shape", "query", "key"),
    HeadNorm: ("norm", "own", "turned"),
    Rotate: ("rope", "shape"),
    ScaleQueries: ("growth", "shape"),
    NormValues: ("norm", "shape", "of_keys"),
    Attend: ("layer", "shape", "sinks"),
    AttendShared: ("layer", "shape"),
    AttentionShape: ("heads", "kv_heads", "head_dim", "scale", "window", "softcap", "chunk", "alibi", "sinks"),
    Scale: ("widths", "factors"),
    Multiply: ("width", "activation"),
}
"""Fields that can be cut, or that mean the same for a part; others must have their defaults."""


def check_divisible(outline: Outline) -> None:
    """Raise ModelError for a model that cannot be divided among ranks."""
    facts = outline.facts
    if not isinstance(outline, Program):
        what = "code of Transformers"
    elif facts.pooling is not None:
        what = "a pooling head"
    elif facts.own or facts.whole:
        what = "caches of its own"
    else:
        return
    raise ModelError(f"{facts.architecture} has {what} and cannot be divided among ranks; {ADVICE}")


def shard(program: Program, ranks: int, rank: int, *, in_kernels: bool = False) -> Program:
    """Return the program that one of `ranks` ranks runs. `in_kernels`: see `Reduce`.

    Each rank computes the logits of a part of the vocabulary; if the vocabulary is too small to be divided, rank 0
    computes them all.

    Raises ModelError for a program that cannot be cut, UsageError for more ranks than it has parts.
    """
    check_divisible(program)
    facts = program.facts
    if facts.states:
        raise ModelError(
            f"{facts.architecture} has recurrent layers, which cannot be divided among ranks, but into stages "
            "(--pipeline-parallel)"
        )
    cutter = _Cutter(program, ranks, rank, in_kernels=in_kernels)
    ops, ends = list[Op](), [0]
    for index in range(len(program.ops)):
        ops += cutter.cut(index)
        ends.append(len(ops))
    head, elsewhere = program.head, tuple(cutter.elsewhere)
    if cutter.tokens is not None:
        assert isinstance(head, Logits)
        bias = None if head.bias is None else head.bias.rows(cutter.tokens)
        head = replace(head, weight=head.weight.rows(cutter.tokens), bias=bias)
    elif rank > 0:
        elsewhere += head.weights()
        head = NoLogits(facts.hidden_size)
    return replace(
        program,
        facts=replace(facts, attention=tuple(cutter.shapes)),
        ops=tuple(ops),
        head=head,
        layers=tuple(ends[at] for at in program.layers),
        elsewhere=elsewhere,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """A rank's columns of a value that has `width` columns in the whole program. `heads`: it holds heads."""

    width: int
    columns: Range
    heads: HeadRanges | None = None


class _Cutter:
    """Cuts the ops of a program in order, and records which values a rank has only in part.

    `shapes`: the attention shape of each cache so far. `elsewhere`: weights that only other ranks read. `tokens`: the
    rank's part of the vocabulary; None if it is not divided.
    """

    def __init__(self, program: Program, ranks: int, rank: int, *, in_kernels: bool) -> None:
        self._in_kernels = in_kernels
        self._program = program
        self._ranks = ranks
        self._rank = rank
        self._parts: dict[str, _Cut] = {}
        self.shapes: list[AttentionShape] = []
        self.elsewhere: list[Weight] = []
        parts = vocabulary_parts(program.facts.vocab_size, ranks) if _divides_tokens(program) else None
        self.tokens = None if parts is None else parts[rank]

    def cut(self, index: int) -> Iterator[Op]:
        """Yield the rank's ops for the op at an index."""
        op = self._program.ops[index]
        parts = [self._parts.get(name) for name in op.reads]
        for name in op.writes:
            self._parts.pop(name, None)
        match op:
            case Embed() if index == 0 and self.tokens is not None:
                yield replace(op, table=op.table.rows(self.tokens), first=self.tokens[0])
                yield Reduce(op.table.shape[1], self._ranks, op.writes, op.writes, self._in_kernels)
            case Product(kind=OpKind.QKV) if not any(parts):
                yield self._projected(op, self._attention_after(index))
            case Product(kind=OpKind.GATE_UP) if not any(parts) and self._meets_whole(index):
                yield op
            case Product(kind=OpKind.GATE_UP) | GatedProduct() if not any(parts):
                yield self._opened(op)
            case Product() if not any(parts):
                yield op
            case Product() if parts[0] is not None:
                yield from self._summed(op, parts[0])
            case Experts() if not any(parts):
                yield from self._experts(op)
            case OfHeads() | NormValues() | AttendShared() if (cut := parts[0]) is not None and cut.heads is not None:
                yield self._of_heads(op, cut, cut.heads)
            case Scale(widths=[_], factors=[_]) if (cut := parts[0]) is not None and cut.heads is None:
                self._check(op)
                yield replace(op, widths=(_size(cut.columns),))
                self._parts[op.writes[0]] = cut
            case Multiply() if (cut := parts[0]) is not None and cut.heads is None and parts[1] == cut:
                self._check(op)
                yield replace(op, width=_size(cut.columns))
                self._parts[op.writes[0]] = cut
            case _ if isinstance(op, ROW_BY_ROW) and not any(parts):
                yield op
            case _:
                raise self._refusal(op)

    def _projected(self, op: Product, attention: Attend | AttendShared) -> Product:
        """Cut the product that computes queries, keys and values."""
        self._check(op, attention.shape)
        shape = attention.shape
        if self._ranks > shape.heads:
            raise self._too_many(f"{shape.heads} query heads")
        heads, size = heads_of(shape, self._ranks, self._rank), shape.head_dim
        queries, keys = _scaled(heads.queries, size), _scaled(heads.keys, size)
        wanted = [queries]
        for first in range(shape.query_width, op.outputs, shape.key_width):
            wanted.append((first + keys[0], first + keys[1]))
        self._parts[op.writes[0]] = _Cut(shape.query_width, queries, heads)
        return replace(op, parts=_rows(op.parts, wanted), biases=_rows(op.biases, wanted))

    def _opened(self, op: Product | GatedProduct) -> Op:
        """Cut the first product of an MLP: its rows, and those of its gate."""
        self._check(op)
        first, end = self._inner(op.outputs)
        wanted = [(first, end)]
        if isinstance(op, GatedProduct):
            wanted.append((op.outputs + first, op.outputs + end))
        self._parts[op.writes[0]] = _Cut(op.outputs, (first, end))
        return replace(op, parts=_rows(op.parts, wanted), biases=_rows(op.biases, wanted))

    def _summed(self, op: Product, cut: _Cut) -> Iterator[Op]:
        """Cut a product by columns, and add the results of all ranks."""
        self._check(op)
        if op.activation is not None or op.clip is not None or cut.width != op.inputs:
            raise self._refusal(op)
        parts = tuple(weight.columns(*cut.columns) for weight in op.parts)
        yield replace(op, parts=parts, biases=self._first_ranks(op.biases))
        yield Reduce(op.outputs, self._ranks, op.writes, op.writes, self._in_kernels)

    def _experts(self, op: Experts) -> Iterator[Op]:
        """Cut each expert between its two products, and add the results of all ranks."""
        self._check(op)
        first, end = self._inner(op.inner)
        wanted = [(first, end), (op.inner + first, op.inner + end)][: 2 if op.gated else 1]
        yield replace(
            op,
            gate_up=tuple(_rows(parts, wanted) for parts in op.gate_up),
            gate_up_biases=tuple(_rows(parts, wanted) for parts in op.gate_up_biases),
            down=tuple(weight.columns(first, end) for weight in op.down),
            down_biases=self._first_ranks(op.down_biases),
        )
        yield Reduce(op.hidden, self._ranks, op.writes, op.writes, self._in_kernels)

    def _of_heads(self, op: OfHeads | NormValues | AttendShared, cut: _Cut, heads: HeadRanges) -> Op:
        """Cut an op over heads; the result of attention has the columns of the rank's queries."""
        shape: AttentionShape = op.shape  # type: ignore[union-attr]
        self._check(op, shape)
        changed: dict[str, Any] = {"shape": heads.of(shape)}
        match op:
            case NormHeads():
                self._check(op, op.norm)
                if op.norm.own:
                    for name, of, weight in (("query", heads.queries, op.query), ("key", heads.keys, op.key)):
                        changed[name] = None if weight is None else weight.rows(_scaled(of, shape.head_dim))
            case Attend():
                if op.sinks is not None:
                    changed["sinks"] = op.sinks.rows(heads.queries)
                while len(self.shapes) <= op.layer:
                    self.shapes.append(heads.of(shape))
        self._parts[op.writes[0]] = cut
        return replace(op, **changed)  # type: ignore[type-var]

    def _attention_after(self, index: int) -> Attend | AttendShared:
        """Return the attention that reads the product at an index. Raises ModelError if another op does."""
        product = self._program.ops[index]
        for op in self._program.ops[index + 1 :]:
            if product.writes[0] in op.reads:
                if isinstance(op, Attend | AttendShared):
                    return op
                if not isinstance(op, OfHeads | NormValues):
                    raise self._refusal(op)
        raise self._refusal(product)

    def _meets_whole(self, index: int) -> bool:
        """Return whether the product at an index is multiplied with a value that every rank has whole."""
        ops = self._program.ops
        [name] = ops[index].writes
        at = next((at for at in range(index + 1, len(ops)) if name in ops[at].reads), index)
        if not isinstance(ops[at], Multiply):
            return False
        [other] = [each for each in ops[at].reads if each != name]
        producer = next(op for op in reversed(ops[:at]) if other in op.writes)
        return isinstance(producer, Columns)

    def _inner(self, width: int) -> Range:
        if self._ranks > width:
            raise self._too_many(f"{width} columns of an MLP")
        return share(width, self._ranks, self._rank)

    def _first_ranks(self, biases: tuple[Weight, ...]) -> tuple[Weight, ...]:
        """Return biases that are added to a sum: rank 0 has them, no other rank."""
        if self._rank == 0:
            return biases
        self.elsewhere += biases
        return ()

    def _check(self, *records: object) -> None:
        """Raise ModelError if a record has a field that this module does not know."""
        for record in records:
            if type(record) not in _KNOWN:
                raise self._refusal(record)
            for field in fields(record):  # type: ignore[arg-type]
                known = field.name in (*_KNOWN[type(record)], "kind", "reads", "writes")
                if not known and getattr(record, field.name) != field.default:
                    raise ModelError(
                        f"{self._architecture} has {type(record).__name__} with {field.name}, which cannot be divided "
                        f"among ranks; {ADVICE}"
                    )

    def _refusal(self, op: object) -> ModelError:
        return ModelError(
            f"{self._architecture} has {type(op).__name__}, which cannot be divided among ranks; {ADVICE}"
        )

    def _too_many(self, what: str) -> UsageError:
        most = what.partition(" ")[0]
        return UsageError(
            f"--tensor-parallel {self._ranks}: {self._architecture} has {what}, at least one for each rank is needed; "
            f"use at most {most}"
        )

    @property
    def _architecture(self) -> str:
        return self._program.facts.architecture


def _divides_tokens(program: Program) -> bool:
    """Return whether the embedding is the first op and has a row for each token, as the output layer has."""
    first, head, vocab = program.ops[0], program.head, program.facts.vocab_size
    if not isinstance(first, Embed) or first.partial or first.texts is not None or not isinstance(head, Logits):
        return False
    others = [weight for op in program.ops[1:] for weight in op.weights()]
    shared = any(str(weight) in (str(first.table), str(head.weight)) for weight in others)
    return first.table.shape[0] == head.width == vocab and not shared


def _rows(weights: tuple[Weight, ...], wanted: list[Range]) -> tuple[Weight, ...]:
    """Return the wanted rows of weights that are concatenated by rows. Those without wanted rows are left out."""
    found, begin = [], 0
    for weight in weights:
        end = begin + weight.shape[0]
        ranges = [(max(first, begin) - begin, min(last, end) - begin) for first, last in wanted]
        if kept := [each for each in ranges if each[0] < each[1]]:
            found.append(weight.rows(*kept))
        begin = end
    return tuple(found)


def _scaled(heads: Range, head_dim: int) -> Range:
    """Return the columns of a range of heads."""
    return heads[0] * head_dim, heads[1] * head_dim


def _size(columns: Range) -> int:
    return columns[1] - columns[0]
