"""What the CPU kernels walk is what the program says: both are worked out with names for numbers, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.cpu.op_records import RESULT, Into
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import fused_program, why_not_fused, widths_of
from plimsoll_runtime.models.cpu_executor.ops import (
    ByColumn,
    FusedAdd,
    FusedAttend,
    FusedColumns,
    FusedEmbed,
    FusedExperts,
    FusedGate,
    FusedHeads,
    FusedNorm,
    FusedOp,
    FusedPositions,
    FusedProduct,
    FusedRoute,
)
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.cost import OpKind
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
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, PlainMlp, TopK
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import (
    DeltaShape,
    DualShape,
    GatedDelta,
    Griffin,
    Mamba,
    Mamba2,
    ShortConvolution,
)
from plimsoll_runtime.models.spec.tensor_names import Names

Term = tuple[Any, ...]
"""What an op is, and the terms that it reads."""

RMS = Norm(1e-5)
SHAPE = AttentionShape(heads=3, kv_heads=1, head_dim=32, scale=0.2)
ROPE = RopeSpec(head_dim=32, theta=1e4)
LAYER = LayerSpec(SelfAttention(SHAPE, ROPE), GatedMlp(72), RMS)
NAMES = Names(positions="positions", embedding_norm="embed_norm", norms=("a", "b", "c", "d"))

norms = st.builds(Norm, st.sampled_from([1e-5, 1e-3]), st.sampled_from(["rms", "layer"]), weighted=st.booleans())
head_norms = st.builds(HeadNorm, st.just(RMS), together=st.booleans(), own=st.booleans())
attentions = st.builds(
    SelfAttention,
    st.just(SHAPE),
    st.sampled_from([None, ROPE]),
    st.none() | head_norms | st.builds(HeadNorm, st.just(RMS), turned=st.just(True)),
    clip=st.sampled_from([None, 2.0]),
)
duals = st.builds(
    Mamba2,
    st.sampled_from(
        [DualShape(heads=4, head_dim=6, groups=2, state=10), DualShape(heads=3, head_dim=8, groups=1, state=4)]
    ),
    st.just(4),
    st.sampled_from([None, 1e-5]),
    multipliers=st.sampled_from([None, (0.5, 2.0, 1.5, 0.7, 0.3)]),
    input_multiplier=st.sampled_from([1.0, 0.5]),
)
deltas = st.builds(
    GatedDelta, st.just(DeltaShape(key_heads=2, value_heads=4, key_dim=6, value_dim=10)), st.just(4), st.just(1e-6)
)
mambas = st.builds(Mamba, st.just(72), st.just(8), st.just(5), st.just(4), norm=st.sampled_from([None, RMS]))
recurrences = (
    duals
    | deltas
    | mambas
    | st.builds(ShortConvolution, st.sampled_from([24, 40]), st.sampled_from([3, 4]), st.booleans())
    | st.builds(Griffin, st.just(24), st.just(2), st.just(4), st.just("gelu_tanh"))
)
mlps = st.builds(GatedMlp, st.sampled_from([40, 72])) | st.builds(PlainMlp, st.sampled_from([24, 72]), st.just("gelu"))
mixtures = st.builds(
    Mixture,
    st.sampled_from([4, 20]),
    st.sampled_from([1, 3]),
    st.sampled_from([24, 72]),
    st.builds(TopK, corrected=st.booleans()),
    shared=st.none() | st.builds(GatedMlp, st.sampled_from([40, 72])),
    shared_gated=st.booleans(),
)
layers = st.builds(
    LayerSpec,
    attentions | recurrences,
    mlps | mixtures,
    norms,
    before=st.booleans(),
    after=st.booleans(),
    residual=st.sampled_from(["sequential", "parallel", "parallel-one-norm"]),
    scale=st.sampled_from([1.0, 0.3]),
)
embeddings = st.builds(Embedding, positions=st.sampled_from([None, 64]), norm=st.none() | norms)


def spec_of(*every: LayerSpec, **options: Any) -> DecoderSpec:
    return replace(DecoderSpec("Fused", 20, 40, every, 64, RMS, names=NAMES), **options)


def said(program: Program) -> Term:
    """The hidden states, as the program says."""
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


@dataclass(frozen=True)
class Lying:
    """What a place holds."""

    term: Term
    width: int


def walked(program: Program) -> Term:
    """The hidden states, as the kernels find them in the places."""
    fused = fused_program(program)
    held: dict[int, Lying] = {}
    cache: dict[int, Term] = {}

    def read(place: int, width: int, *, operands: bool) -> Term:
        assert fused.places[place].operands == operands
        assert held[place].width == width <= fused.places[place].width
        assert not operands or width >= fused.places[place].narrowest
        return held[place].term

    for op in fused.ops:
        if isinstance(op, FusedRoute):
            assert len({op.source, op.scores, op.shares, op.numbers}) == 4
            assert not any(fused.places[place].operands for place in (op.scores, op.shares, op.numbers))
            term = (_name(op.op), read(op.source, op.op.weight.shape[1], operands=False))
            held.pop(op.scores, None)
            for place, name in zip((op.shares, op.numbers), op.op.writes, strict=True):
                held[place] = Lying((name, *term), op.op.chosen)
            continue
        if isinstance(op, FusedColumns):
            width, term = _over_columns(op, held, [place.operands for place in fused.places])
            if op.scratch is not None:
                held.pop(op.scratch, None)
            held[op.target] = Lying(term, width)
            continue
        target, width, term = _walk(op, read, held, cache)
        held[target] = Lying(term, width)
        if target != RESULT:
            assert width <= fused.places[target].width
    return held[RESULT].term


def _columns(whole: Term, first: int, width: int) -> Term:
    return ("columns", whole, first, width)


def _over_columns(op: FusedColumns, held: Mapping[int, Lying], operands: Sequence[bool]) -> tuple[int, Term]:
    """The width of what is written, and what it is then."""
    widths, written = widths_of(op.op)
    terms = []
    for number, (source, width) in enumerate(zip(op.sources, widths, strict=True)):
        assert not operands[source.place] or (isinstance(op.op, Multiply) and number == 0)
        # A row is written where it was read, if at all.
        assert op.target != source.place or (source.first == 0 and isinstance(op.op, ByColumn))
        assert source.place != op.scratch != op.target
        whole = held[source.place]
        assert source.first + width <= whole.width
        terms.append(whole.term if whole.width == width else _columns(whole.term, source.first, width))
    copied = isinstance(op.op, Scale) and op.op.factors == (1.0,)
    return written, terms[0] if copied else (_name(op.op), *terms)


def _walk(op: FusedOp, read: Any, held: Mapping[int, Lying], cache: dict[int, Term]) -> tuple[int, int, Term]:
    """The place that an op writes, and what lies there then."""
    match op:
        case FusedEmbed():
            return op.target, op.op.table.shape[1], (_name(op.op),)
        case FusedPositions():
            width = op.op.table.shape[1]
            return op.target, width, (_name(op.op), read(op.target, width, operands=False))
        case FusedNorm(weight=weight) if weight is not None and op.timed is OpKind.ROPE:
            assert op.source == op.target
            term = held[op.source].term
            # The keys come second: then the norm of both is done.
            return (
                op.target,
                held[op.source].width,
                ("half", term) if op.first == 0 else (("together", weight), term[1]),
            )
        case FusedNorm():
            found = read(op.source, op.width, operands=False)
            normed = found if op.norm is None else (("norm", op.norm, op.weight, op.bias), found)
            if op.adds:
                normed = _sum(read(op.target, op.width, operands=False), normed, op.scale)
            return op.target, op.width, normed
        case FusedProduct():
            assert op.source != op.target
            # What the kernels do to a product's results on their way to floats, and to operands.
            assert op.into in (Into.GATED, Into.OPERANDS) or op.op.activation is None
            assert op.into is Into.FLOATS or getattr(op.op, "clip", None) is None
            found = (_name(op.op), read(op.source, op.op.inputs, operands=True))
            if op.into is Into.SUM:
                found = _sum(read(op.target, op.op.outputs, operands=False), found, op.scale)
            return op.target, op.op.outputs, found
        case FusedHeads():
            shape = op.attend.shape
            term = read(op.source, shape.query_width + 2 * shape.key_width, operands=False)
            turns = [op.rotate, op.norm] if op.turned else [op.norm, op.rotate]
            for turn in turns:
                term = term if turn is None else (_name(turn), term)
            cache[op.attend.layer] = term
            return op.target, shape.query_width, ("queries", term)
        case FusedAttend():
            assert op.source != op.target
            queries = read(op.source, op.op.shape.query_width, operands=True)
            assert queries == ("queries", cache[op.op.layer])
            return op.target, op.op.shape.query_width, (_name(op.op), cache[op.op.layer])
        case FusedExperts():
            states = read(op.source, op.op.hidden, operands=False)
            found = (_name(op.op), states, *(read(p, op.op.chosen, operands=False) for p in (op.shares, op.numbers)))
            assert op.target not in (op.shares, op.numbers)
            assert op.adds or op.target != op.source  # states are taken before anything is added to them
            if op.adds:
                found = _sum(read(op.target, op.op.hidden, operands=False), found, op.scale)
            return op.target, op.op.hidden, found
        case FusedRoute() | FusedColumns():
            raise TypeError("they are walked by themselves")
        case FusedGate():
            width = op.op.weight.shape[1]
            states, gated = (read(place, width, operands=False) for place in (op.source, op.target))
            return op.target, width, (_name(op.op), states, gated)
        case FusedAdd():
            x, y = (read(place, op.op.width, operands=False) for place in (op.source, op.added))
            return op.target, op.op.width, _sum(x, y, op.op.scale)
        case _:
            raise NotImplementedError(f"no program here has {type(op).__name__}")


def _sum(x: Term, y: Term, scale: float) -> Term:
    return ("sum", x, y, scale)


def _name(op: Op) -> Any:
    """What an op does, whatever its values are called."""
    if isinstance(op, NormHeads) and op.norm.together:
        return ("together", op.key)
    if isinstance(op, Product | GatedProduct):
        return ("product", op.parts, op.biases, op.activation, getattr(op, "clip", None))
    if isinstance(op, NormHeads | Rotate | Attend | Route | Experts | Gate):
        return replace(op, reads=(), writes=())
    found = getattr(op, "norm", None)
    return ("norm", found, op.weight, op.bias) if found is not None else replace(op, reads=(), writes=())  # type: ignore


@given(every=st.lists(layers, min_size=1, max_size=4), embedding=embeddings, final=st.none() | norms)
def test_the_kernels_walk_what_the_program_says(
    every: list[LayerSpec], embedding: Embedding, final: Norm | None
) -> None:
    program = program_of(spec_of(*every, embedding=embedding, final_norm=final))
    assert walked(program) == said(program)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any row of norms, products and sums, whose values are called what other values were called before."""
    program = program_of(spec_of(LAYER))
    ops: list[Op] = [program.ops[0]]
    there = ["x"]
    for number in range(draw(st.integers(1, 12))):
        read, other = draw(st.sampled_from(there)), draw(st.sampled_from(there))
        written: tuple[str, ...] = (draw(st.sampled_from("xyz")),)
        weight = Weight(f"weight {number}", (40,))
        match draw(st.sampled_from(["norm", "product", "activated", "add", "split", "multiply", "convolve", "scale"])):
            case "split":
                product = Product(OpKind.QKV, (Weight(f"wide {number}", (100, 40)),), (), (read,), ("whole",))
                parts = draw(st.permutations(["x", "y", "z"]))[:2]
                ops += [product, Split((40, 40, 20), ("whole",), (*parts, "narrow"))]
                written = tuple(parts)
            case "multiply":
                ops.append(Multiply(40, draw(st.sampled_from(["none", "silu"])), (read, other), written))
            case "convolve":
                ops.append(Convolve(number, Weight(f"taps {number}", (40, 3)), None, None, (read,), written))
            case "scale":
                ops.append(Scale((40,), (draw(st.sampled_from([0.5, 2.0])),), (read,), written))
            case "norm":
                ops.append(Normalise(RMS, 40, (read,), written, weight))
            case "product" | "activated" as kind:
                matrix = Weight(f"matrix {number}", (40, 40))
                activation: Activation | None = "gelu" if kind == "activated" else None
                ops.append(Product(OpKind.QKV, (matrix,), (), (read,), written, activation))
            case "add":
                ops.append(Add(40, OpKind.DOWN, (read, other), written, scale=draw(st.sampled_from([1.0, 0.5]))))
        there = [*dict.fromkeys([*there, *written])]
    ops.append(Normalise(RMS, 40, (draw(st.sampled_from(there)),), ("hidden",), Weight("last", (40,))))
    return replace(program, ops=tuple(ops))


@settings(max_examples=300)
@given(program=programs())
def test_values_that_are_still_read_are_not_written_over(program: Program) -> None:
    if why_not_fused(program) is None:
        assert walked(program) == said(program)


def test_a_name_is_given_anew_while_its_old_place_holds_another_value() -> None:
    program = program_of(spec_of(LAYER))
    matrix, weight = Weight("matrix", (40, 40)), Weight("weight", (40,))
    ops = (
        program.ops[0],
        Normalise(RMS, 40, ("x",), ("normed",), weight),
        Product(OpKind.DOWN, (matrix,), (), ("normed",), ("added",)),
        Add(40, OpKind.DOWN, ("x", "added"), ("z",)),  # made where x lay
        Normalise(RMS, 40, ("z",), ("x",), weight),
        Add(40, OpKind.DOWN, ("z", "x"), ("x",)),
        Normalise(RMS, 40, ("x",), ("hidden",), weight),
    )
    program = replace(program, ops=ops)
    assert walked(program) == said(program)
    first, _, third, *_ = fused_program(program).ops
    assert isinstance(first, FusedEmbed)
    assert isinstance(third, FusedProduct)
    assert third.target == first.target


def test_values_share_places_however_many_layers_there_are() -> None:
    few, many = (fused_program(program_of(spec_of(*[LAYER] * count))) for count in (1, 40))
    assert few.places == many.places
    assert len(many.places) == 6  # the states, normed, heads, queries, attended, inner


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (replace(LAYER, norm=replace(RMS, biased=True)), "has no bias for root mean square norms"),
        (
            replace(LAYER, mixer=SelfAttention(SHAPE, ROPE, HeadNorm(RMS, together=True, turned=True))),
            "norms all heads together before they turn",
        ),
    ],
)
def test_what_the_kernels_do_not_have_is_said(layer: LayerSpec, reason: str) -> None:
    assert why_not_fused(program_of(spec_of(layer))) == reason


def test_experts_add_to_the_states_where_nothing_comes_between() -> None:
    mixture = Mixture(4, 2, 24, TopK())
    for mlp, adds, sums in (
        (mixture, True, 0),
        (replace(mixture, shared=GatedMlp(40)), False, 1),  # the shared expert adds to what experts give
        (replace(mixture, shared=GatedMlp(40), shared_gated=True), False, 2),
    ):
        ops = fused_program(program_of(spec_of(replace(LAYER, mlp=mlp)))).ops
        [experts] = [op for op in ops if isinstance(op, FusedExperts)]
        assert experts.adds == adds
        assert sum(isinstance(op, FusedAdd) for op in ops) == sums


def test_positions_beyond_a_table_are_not_read() -> None:
    program = program_of(spec_of(LAYER, embedding=Embedding(positions=65, first_position=2)))
    assert why_not_fused(program) == "has no row in positions.weight for each of 64 positions"
    assert why_not_fused(program_of(spec_of(LAYER, embedding=Embedding(positions=66, first_position=2)))) is None


@dataclass(frozen=True, slots=True)
class Forgetful(Attend):
    """Attention that says more than the kernels know."""

    forgets: bool = False


@pytest.mark.parametrize("forgets", [False, True])
def test_a_field_that_nobody_knows_is_refused_where_it_says_something(forgets: bool) -> None:
    program = program_of(spec_of(LAYER))
    ops = tuple(
        Forgetful(op.layer, op.shape, op.reads, op.writes, forgets=forgets) if isinstance(op, Attend) else op
        for op in program.ops
    )
    assert why_not_fused(replace(program, ops=ops)) == ("knows no forgets of Forgetful" if forgets else None)


class Unheard:
    """No op of anybody's."""

    kind = OpKind.NORM


def test_a_row_of_ops_that_makes_no_sense_is_refused() -> None:
    program = program_of(spec_of(LAYER))
    assert why_not_fused(replace(program, ops=program.ops[1:])) == "begins with an embedding, and the model does not"
    without = tuple(op for op in program.ops if not isinstance(op, Attend))
    assert (
        why_not_fused(replace(program, ops=without))
        == "norms heads once and turns them once, on their way to attention"
    )
