"""Costs of ops against counts made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_support.specs import with_shapes

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.families.common.variants import self_attention, with_windows
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, total
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=1.0)
NORM = Norm(1e-6)
LAYER = LayerSpec(SelfAttention(SHAPE, RopeSpec(head_dim=8, theta=1e4)), GatedMlp(24), NORM)
SPEC = DecoderSpec(
    architecture="test",
    vocab_size=100,
    hidden_size=16,
    layers=(LAYER,) * 3,
    max_positions=64,
    final_norm=NORM,
)
BF16 = 2


def step_cost(spec: DecoderSpec, plan: StepPlan, element_bytes: int) -> Mapping[OpKind, OpCost]:
    return program_of(spec).step_cost(plan, element_bytes)


def rows(*ranges: tuple[int, int], sample: bool = True) -> StepPlan:
    """Return a step with one sequence for each (start, end)."""
    return StepPlan([ScheduledSequence(i, a, [0] * (b - a), (), sample) for i, (a, b) in enumerate(ranges)])


def test_a_decode_of_one_sequence_by_hand() -> None:
    """One row at position 9, three layers, bfloat16."""
    assert step_cost(SPEC, rows((9, 10)), BF16) == {
        OpKind.EMBED: OpCost(2 * 16 * 2, 0),
        # seven norms: 16 in, 16 out, 16 weights of float32
        OpKind.NORM: OpCost(7 * (2 * 16 * 2 + 16 * 4), 7 * 4 * 16),
        # 16 -> 4 x 8 + 2 x 2 x 8 = 64
        OpKind.QKV: OpCost(3 * (16 * 64 + 16 + 64) * 2, 3 * 2 * 16 * 64),
        OpKind.ROPE: OpCost(3 * 2 * 48 * 2, 3 * 3 * 48),
        # 32 of queries in and out; 16 of keys and 16 of values, 1 written, 10 read; 10 tokens x 4 heads x 8 x 4
        OpKind.ATTENTION: OpCost(3 * (2 * 32 + 2 * 11 * 16) * 2, 3 * 4 * 32 * 10),
        OpKind.OUTPUT: OpCost(3 * (32 * 16 + 32 + 16) * 2, 3 * 2 * 32 * 16),
        # 16 -> 2 x 24, of which 24 leave
        OpKind.GATE_UP: OpCost(3 * (16 * 48 + 16 + 24) * 2, 3 * 2 * 16 * 48),
        OpKind.DOWN: OpCost(3 * (24 * 16 + 24 + 16) * 2, 3 * 2 * 24 * 16),
        # logits are float32
        OpKind.HEAD: OpCost((16 * 100 + 16) * 2 + 100 * 4, 2 * 16 * 100),
    }


def test_weights_are_read_once_a_step_and_each_context_by_itself() -> None:
    one, many = (step_cost(SPEC, rows(*[(9, 10)] * n), BF16) for n in (1, 5))
    weights = 3 * 16 * 64 * BF16
    assert many[OpKind.QKV].bytes - weights == 5 * (one[OpKind.QKV].bytes - weights)
    assert many[OpKind.ATTENTION] == one[OpKind.ATTENTION] * 5
    assert all(many[kind].flops == 5 * one[kind].flops for kind in one)


def test_only_rows_that_need_logits_pay_for_the_head() -> None:
    assert OpKind.HEAD not in step_cost(SPEC, rows((0, 4), sample=False), BF16)
    scored = StepPlan([ScheduledSequence(0, 0, [0] * 4, (), True, [1, 2, 3])])
    assert step_cost(SPEC, scored, BF16)[OpKind.HEAD].flops == 4 * 2 * 16 * 100


def test_biases_post_norms_and_head_norms_are_counted() -> None:
    plan = rows((0, 1))
    plain = step_cost(SPEC, plan, BF16)
    mixer = replace(self_attention(LAYER), qkv_bias=True, output_bias=True, head_norm=HeadNorm(NORM))
    layer = replace(LAYER, mixer=mixer, mlp=GatedMlp(24, bias=True), after=True)
    rich = step_cost(replace(SPEC, layers=(layer,) * 3), plan, BF16)
    extra = {kind: (rich[kind].bytes - plain[kind].bytes, rich[kind].flops - plain[kind].flops) for kind in plain}
    assert extra == {
        OpKind.EMBED: (0, 0),
        OpKind.NORM: (6 * (2 * 16 * 2 + 16 * 4), 6 * 4 * 16),
        OpKind.QKV: (3 * 64 * 4, 0),
        OpKind.ROPE: (0, 3 * 4 * 48),
        OpKind.ATTENTION: (0, 0),
        OpKind.OUTPUT: (3 * 16 * 4, 0),
        OpKind.GATE_UP: (3 * 48 * 4, 0),
        OpKind.DOWN: (3 * 16 * 4, 0),
        OpKind.HEAD: (0, 0),
    }


@given(
    start=st.integers(0, 30),
    count=st.integers(1, 30),
    window=st.one_of(st.none(), st.integers(1, 70)),
    chunk=st.one_of(st.none(), st.integers(1, 70)),
)
def test_attention_counts_what_the_mask_shows(start: int, count: int, window: int | None, chunk: int | None) -> None:
    """Compares with an explicit mask: pairs of query and token, and tokens that any query sees."""
    spec = with_shapes(replace(SPEC, layers=(LAYER,)), lambda shape: replace(shape, window=window, chunk=chunk))

    def sees(p: int, t: int) -> bool:
        return (window is None or t > p - window) and (chunk is None or t // chunk == p // chunk)

    seen = [{t for t in range(p + 1) if sees(p, t)} for p in range(start, start + count)]
    pairs, read = sum(map(len, seen)), len(set().union(*seen))
    cost = step_cost(spec, rows((start, start + count)), BF16)[OpKind.ATTENTION]
    assert cost == OpCost((2 * count * 32 + 2 * (count + read) * 16) * BF16, 4 * 32 * pairs)


def test_layers_of_different_shapes_are_counted_each() -> None:
    mixed = with_windows(SPEC, [None, 4, None])
    plan = rows((20, 21))
    alone = [step_cost(with_windows(SPEC, [w] * 3), plan, BF16)[OpKind.ATTENTION] for w in (None, 4)]
    assert step_cost(mixed, plan, BF16)[OpKind.ATTENTION] * 3 == alone[0] * 2 + alone[1]


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_small_models_decode_is_its_weights(element_bytes: int) -> None:
    """With a tiny cache, nearly all bytes are weights, counted once."""
    spec = replace(SPEC, vocab_size=32000, hidden_size=768, layers=(replace(LAYER, mlp=GatedMlp(2304)),) * 3)
    weights = 32000 * 768 + 3 * (768 * 64 + 32 * 768 + 3 * 768 * 2304)
    moved = total(step_cost(spec, rows((1, 2)), element_bytes).values()).bytes
    assert 1.0 < moved / (weights * element_bytes) < 1.01
