"""Evaluates a program symbolically: directly, and as lowered to the CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from dataclasses import replace
from itertools import accumulate
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from plimsoll_kernels.cpu import columns_records
from plimsoll_kernels.cpu.columns_records import (
    ConvolveRecord,
    DeltaRuleRecord,
    DualScanRecord,
    GatedNormRecord,
    GatedRecurrenceRecord,
    MultiplyRecord,
    PartRecord,
    ScaleRecord,
    SelectiveScanRecord,
)
from plimsoll_kernels.cpu.op_records import (
    RESULT,
    Activation,
    AddRecord,
    AnyOp,
    AttendRecord,
    EmbedRecord,
    ExpertsRecord,
    GateRecord,
    HeadsRecord,
    Into,
    Normed,
    NormRecord,
    PositionsRecord,
    ProductRecord,
    RouteRecord,
)
from plimsoll_kernels.cpu.places import Fill
from plimsoll_runtime.models.cpu_executor.lowering import lowered_program
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.cpu_values import CpuOp, activation_of
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.weight_reader import ShapeReader
from plimsoll_runtime.weights.image_arena import CountingArena

Term = tuple[Any, ...]
"""An op, and the terms that it reads."""


def said(program: Program) -> Term:
    """Return the program's hidden states as a term."""
    values: dict[str, Term] = {}
    for op in program.ops:
        reads = [values[name] for name in op.reads]
        if isinstance(op, Route):
            values.update({name: (name, _name(op), *reads) for name in op.writes})
            continue
        if isinstance(op, Split):
            [whole] = reads
            firsts = [*accumulate(op.widths, initial=0)][:-1]
            parts = zip(op.writes, firsts, op.widths, strict=True)
            values.update({name: _columns(whole, first, width) for name, first, width in parts})
            continue
        values[op.writes[0]] = _sum(reads[0], reads[1], op.scale) if isinstance(op, Add) else (_name(op), *reads)
    return values[program.result]


class Noted(ShapeReader):
    """A ShapeReader that records the requested weights."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, torch.float32)
        self.weights: list[Weight] = []

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        self.weights.append(weight)
        return super().read(weight, keep=keep)


class Hollow(CountingArena):
    """A CountingArena that calls `fill`, so that weights are read."""

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        found = super().place(shape, dtype, fill)
        fill(found)
        return found


def _nothing(*arguments: object) -> None:
    """Do nothing instead of packing a weight."""


class NotedWeights(CpuWeights):
    """CpuWeights without kernels, which records the tensors and the scale of the last record."""

    def __init__(self, program: Program) -> None:
        kernels: Any = SimpleNamespace(packed_elements=lambda *sizes: 1, pack=_nothing, pack_gated=_nothing)
        self.noted = Noted(program)
        self.tensors: list[Tensor] = []
        self.last_scale = 1.0
        super().__init__(kernels, self.noted, Hollow(), torch.float32, torch.zeros(1))

    def keep(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return super().keep(tensor)

    def scale(self, weight: Weight | None, width: int, offset: float, scale: float = 1.0) -> int:
        self.last_scale = scale
        return super().scale(weight, width, offset, scale)

    def record(self, op: CpuOp) -> tuple[AnyOp, frozenset[Weight]]:
        """Return an op's record and its weights."""
        self.noted.weights.clear()
        self.tensors.clear()
        return op.record(self), frozenset(self.noted.weights)


class Walk:
    """Evaluates lowered ops symbolically."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lowered = lowered_program(program)
        self._weights = NotedWeights(program)
        self._held: dict[int, tuple[Term, int]] = {}  # term and width of each buffer
        self._cache: dict[int, Term] = {}
        self._of_weights = {frozenset(op.weights()): _name(op) for op in program.ops if op.weights()}

    def result(self) -> Term:
        """Return the term that the last op writes."""
        for op in self._lowered.ops:
            record, weights = self._weights.record(op)
            name = self._of_weights.get(weights)
            match record:
                case RouteRecord():
                    self._route(record, name)
                case NormRecord():
                    self._norm(record, name, weights, op.kind)
                case HeadsRecord() | AttendRecord():
                    self._attention(record, name)
                case EmbedRecord():
                    self._write(record.target, (_name(self._program.ops[0]),), record.width)
                case _ if type(record).__module__ == columns_records.__name__:
                    self._over_columns(record, name, op.kind)
                case _:
                    self._floats(record, name)
        return self._held[RESULT][0]

    def _write(self, place: int, term: Term, width: int) -> None:
        self._held[place] = term, width
        assert place == RESULT or width <= self._lowered.places[place].width

    def _read(self, place: int, width: int, *, operands: bool = False) -> Term:
        found = self._lowered.places[place]
        assert found.operands == operands
        term, own = self._held[place]
        assert own == width <= found.width
        assert not operands or width >= found.narrowest
        return term

    def _route(self, record: RouteRecord, name: Any) -> None:
        assert len({record.source, record.scores, record.shares, record.numbers}) == 4
        assert not any(self._lowered.places[place].operands for place in (record.scores, record.shares, record.numbers))
        term = (name, self._read(record.source, record.hidden))
        self._held.pop(record.scores, None)
        self._write(record.shares, ("shares", *term), record.chosen)
        self._write(record.numbers, ("chosen", *term), record.chosen)

    def _norm(self, record: NormRecord, name: Any, weights: frozenset[Weight], kind: OpKind) -> None:
        if kind is OpKind.ROPE:
            assert record.source == record.target
            term, width = self._held[record.source]
            # The keys come second: after them the norm of both is done.
            [weight] = weights
            self._write(record.target, ("half", term) if record.first == 0 else (("together", weight), term[1]), width)
            return
        term = self._read(record.source, record.width)
        if record.norm != Normed.AS_IS:
            term = (name or self._unweighted(record), term)
        if record.adds:
            term = _sum(self._read(record.target, record.width), term, self._weights.last_scale)
        self._write(record.target, term, record.width)

    def _unweighted(self, record: NormRecord) -> Any:
        """Return the norm without weights that has these fields."""
        [name] = {
            _name(op)
            for op in self._program.ops
            if isinstance(op, Normalise)
            and not op.weights()
            and (Normed[op.norm.kind.upper()], c_float(op.norm.eps).value) == (record.norm, record.eps)
        }
        return name

    def _attention(self, record: HeadsRecord | AttendRecord, norm: Any) -> None:
        assert record.source != record.target
        shape = record.shape
        width = shape.heads * shape.head_dim
        [attend] = [op for op in self._program.ops if isinstance(op, Attend) and op.layer == record.layer]
        if isinstance(record, AttendRecord):
            assert self._read(record.source, width, operands=True) == ("queries", self._cache[record.layer])
            self._write(record.target, (_name(attend), self._cache[record.layer]), width)
            return
        term = self._read(record.source, width + 2 * shape.kv_heads * shape.head_dim)
        rotates = {op.rope: _name(op) for op in self._program.ops if isinstance(op, Rotate)}
        rotate = None if record.rope < 0 else rotates[self._program.ropes[record.rope]]
        for turn in [rotate, norm] if record.turned else [norm, rotate]:
            term = term if turn is None else (turn, term)
        self._cache[record.layer] = term
        self._write(record.target, ("queries", term), width)

    def _floats(self, record: AnyOp, name: Any) -> None:
        match record:
            case PositionsRecord():
                self._write(record.target, (name, self._read(record.target, record.width)), record.width)
            case ProductRecord():
                self._product(record, name)
            case ExpertsRecord():
                width = record.gate_up.inputs
                chosen = (self._read(place, record.chosen) for place in (record.shares, record.numbers))
                term = (name, self._read(record.source, width), *chosen)
                assert record.target not in (record.shares, record.numbers)
                assert record.adds or record.target != record.source  # states are read before anything is added
                if record.adds:
                    term = _sum(self._read(record.target, width), term, record.scale)
                self._write(record.target, term, width)
            case GateRecord():
                states, gated = (self._read(place, record.width) for place in (record.source, record.target))
                self._write(record.target, (name, states, gated), record.width)
            case AddRecord():
                x, y = (self._read(place, record.width) for place in (record.source, record.added))
                self._write(record.target, _sum(x, y, record.scale), record.width)
            case _:
                raise NotImplementedError(f"no program here has {type(record).__name__}")

    def _product(self, record: ProductRecord, name: Any) -> None:
        assert record.source != record.target
        # The kernels change a product's results differently for floats and for operands.
        assert record.into in (Into.GATED, Into.OPERANDS) or record.activation == Activation.NONE
        assert record.into == Into.FLOATS or record.limit == inf
        term: Term = (name, self._read(record.source, record.linear.inputs, operands=True))
        if record.into == Into.SUM:
            term = _sum(self._read(record.target, record.linear.columns), term, record.scale)
        self._write(record.target, term, record.linear.columns)

    def _over_columns(self, record: AnyOp, name: Any, kind: OpKind) -> None:
        sources, widths, written = _widths_of(record)
        in_place = isinstance(record, ScaleRecord | MultiplyRecord | ConvolveRecord | GatedNormRecord)
        terms = []
        for number, (source, width) in enumerate(zip(sources, widths, strict=True)):
            operands = self._lowered.places[source.place].operands
            assert not operands or (isinstance(record, MultiplyRecord) and number == 0)
            # An op writes to its input buffer or to an unrelated one.
            assert record.target != source.place or (source.first == 0 and in_place)
            whole, own = self._held[source.place]
            assert source.first + width <= own
            terms.append(whole if own == width else _columns(whole, source.first, width))
        if isinstance(record, GatedRecurrenceRecord):
            assert record.gates not in (record.target, record.source.place)
            self._held.pop(record.gates, None)
        if isinstance(record, ScaleRecord) and record.factors is None:
            self._write(record.target, terms[0], written)
            return
        self._write(record.target, (name or self._unnamed(record, kind), *terms), written)

    def _unnamed(self, record: AnyOp, kind: OpKind) -> Any:
        """Return the op without weights that has these fields."""
        [name] = {_name(op) for op in self._program.ops if op.kind == kind and self._is(op, record)}
        return name

    def _is(self, op: Op, record: AnyOp) -> bool:
        match op, record:
            case Multiply(), MultiplyRecord():
                return (op.width, activation_of(op.activation)) == (record.width, record.activation)
            case Scale(), ScaleRecord():
                factors = op.factors if len(op.factors) > 1 else op.factors * len(op.widths)
                each = torch.tensor(factors).repeat_interleave(torch.tensor(op.widths))
                return torch.equal(each, self._weights.tensors[0])
        return False


def _widths_of(record: AnyOp) -> tuple[list[PartRecord], list[int], int]:
    """Return the buffers that an op reads with their widths, and the width of its output."""
    match record:
        case ScaleRecord() | ConvolveRecord() | GatedRecurrenceRecord():
            return [record.source], [record.width], record.width
        case MultiplyRecord() | GatedNormRecord():
            return [record.source, record.gate], [record.width] * 2, record.width
        case DualScanRecord():
            inner = record.heads * record.head_dim
            return [record.mixed, record.times], [inner + 2 * record.groups * record.width, record.heads], inner
        case DeltaRuleRecord():
            values = record.value_heads * record.value_dim
            mixed = 2 * record.key_heads * record.key_dim + values
            return [record.mixed, record.writes, record.times], [mixed, *[record.value_heads] * 2], values
        case SelectiveScanRecord():
            sources = [record.source, record.times, record.inputs, record.outputs]
            return sources, [*[record.width] * 2, *[record.count] * 2], record.width
    raise NotImplementedError(type(record).__name__)


def walked(program: Program) -> Term:
    """Return the kernels' hidden states as a term."""
    return Walk(program).result()


def _columns(whole: Term, first: int, width: int) -> Term:
    return ("columns", whole, first, width)


def _sum(x: Term, y: Term, scale: float) -> Term:
    return ("sum", x, y, c_float(scale).value)


def _name(op: Op) -> Any:
    """Return an op without the names of its values."""
    if isinstance(op, NormHeads) and op.norm.together:
        return ("together", op.key)
    if isinstance(op, Product | GatedProduct):
        return ("product", op.parts, op.biases, op.activation, getattr(op, "clip", None))
    if isinstance(op, NormHeads | Rotate | Attend | Route | Experts | Gate):
        return replace(op, reads=(), writes=())
    found = getattr(op, "norm", None)
    return ("norm", found, op.weight, op.bias) if found is not None else replace(op, reads=(), writes=())  # type: ignore
