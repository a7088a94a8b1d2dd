"""Lowered ops compute what the program describes: both are evaluated symbolically and compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support.cpu_walk import NotedWeights, said, walked

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.cpu.op_records import AddRecord, AnyOp, EmbedRecord, ExpertsRecord, ProductRecord
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import lowered_program, why_not_fused
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.matmul import Product
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
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


def records(program: Program) -> list[AnyOp]:
    weights = NotedWeights(program)
    return [op.record(weights) for op in lowered_program(program).ops]


@given(every=st.lists(layers, min_size=1, max_size=4), embedding=embeddings, final=st.none() | norms)
def test_the_kernels_walk_what_the_program_says(
    every: list[LayerSpec], embedding: Embedding, final: Norm | None
) -> None:
    program = program_of(spec_of(*every, embedding=embedding, final_norm=final))
    assert walked(program) == said(program)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a sequence of norms, products and sums that reuses names of values."""
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
        Add(40, OpKind.DOWN, ("x", "added"), ("z",)),  # computed in x's buffer
        Normalise(RMS, 40, ("z",), ("x",), weight),
        Add(40, OpKind.DOWN, ("z", "x"), ("x",)),
        Normalise(RMS, 40, ("x",), ("hidden",), weight),
    )
    program = replace(program, ops=ops)
    assert walked(program) == said(program)
    first, _, third, *_ = records(program)
    assert isinstance(first, EmbedRecord)
    assert isinstance(third, ProductRecord)
    assert third.target == first.target


def test_values_share_places_however_many_layers_there_are() -> None:
    few, many = (lowered_program(program_of(spec_of(*[LAYER] * count))) for count in (1, 40))
    assert few.places == many.places
    assert len(many.places) == 6  # the states, normed, heads, queries, attended, inner


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (replace(LAYER, norm=replace(RMS, biased=True)), "does not support a bias of RMS norms"),
        (
            replace(LAYER, mixer=SelfAttention(SHAPE, ROPE, HeadNorm(RMS, together=True, turned=True))),
            "supports norms over all heads together only before the rotation",
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
        ops = records(program_of(spec_of(replace(LAYER, mlp=mlp))))
        [experts] = [op for op in ops if isinstance(op, ExpertsRecord)]
        assert experts.adds == adds
        assert sum(isinstance(op, AddRecord) for op in ops) == sums


def test_positions_beyond_a_table_are_not_read() -> None:
    program = program_of(spec_of(LAYER, embedding=Embedding(positions=65, first_position=2)))
    assert why_not_fused(program) == "needs a row in positions.weight for each of 64 positions"
    assert why_not_fused(program_of(spec_of(LAYER, embedding=Embedding(positions=66, first_position=2)))) is None


@dataclass(frozen=True, slots=True)
class Forgetful(Attend):
    """Attention with a field that the kernels do not support."""

    forgets: bool = False


@pytest.mark.parametrize("forgets", [False, True])
def test_a_field_that_nobody_knows_is_refused_where_it_says_something(forgets: bool) -> None:
    program = program_of(spec_of(LAYER))
    ops = tuple(
        Forgetful(op.layer, op.shape, op.reads, op.writes, forgets=forgets) if isinstance(op, Attend) else op
        for op in program.ops
    )
    reason = "does not support the field forgets of Forgetful" if forgets else None
    assert why_not_fused(replace(program, ops=ops)) == reason


def test_a_row_of_ops_that_makes_no_sense_is_refused() -> None:
    program = program_of(spec_of(LAYER))
    assert why_not_fused(replace(program, ops=program.ops[1:])) == "needs an embedding as the first op"
    without = tuple(op for op in program.ops if not isinstance(op, Attend))
    assert (
        why_not_fused(replace(program, ops=without))
        == "supports at most one norm and one rotation of heads, directly before attention"
    )
