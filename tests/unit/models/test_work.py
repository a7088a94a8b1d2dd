"""The work of counted steps equals the sum over a program's ops, for all kinds of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parallel_support.models import MODELS, Model

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.engine.work.counter import StepCounts
from plimsoll_runtime.engine.work.model import Work, WorkModel, merged
from plimsoll_runtime.engine.work.visible import Visible
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.experts import Experts
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.work import KINDS, OTHER, work_model
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.rank import part_of

BF16 = 2
HYBRID: Mapping[str, object] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
ALL: Mapping[str, Model] = {**MODELS, "qwen3-next-hybrid": Model("Qwen3NextConfig", HYBRID)}
FAMILIES = ("llama", "gemma3-one-key-head", "gpt-oss", "llama4", "deepseek-latent", "mamba", "qwen3-next-hybrid")
"""Dense, sliding windows, experts, chunks with experts, latent attention, and recurrent layers without and with
attention."""


@cache
def program(name: str) -> Program:
    return ALL[name].program()


def sequence(slot: int, start: int, count: int, sample: bool, targets: int) -> ScheduledSequence:
    return ScheduledSequence(slot, start, [0] * count, (), sample, [0] * min(targets, count))


chunks = st.builds(sequence, st.just(0), st.integers(0, 60), st.integers(1, 50), st.booleans(), st.integers(0, 3))
decodes = st.builds(sequence, st.just(0), st.integers(0, 90), st.just(1), st.just(True), st.just(0))
steps = st.lists(st.one_of(decodes, chunks), max_size=5) | st.lists(decodes, max_size=9)


def counted(model: WorkModel, plans: Sequence[StepPlan]) -> Mapping[str, Work]:
    counter = StepCounts(model)
    for plan in plans:
        counter.add(plan.sequences, plan.num_tokens)
    return model.work(counter.amounts)


def walked(whole: Program, plans: Sequence[StepPlan]) -> dict[str, Work]:
    """Return the work of each kind by a walk over all ops, in each step."""
    found: dict[str, Work] = {}
    for plan in plans:
        for kind, cost in (whole.step_cost(plan, BF16) if plan.sequences else {}).items():
            own, before = KINDS.get(kind, OTHER), found.get(KINDS.get(kind, OTHER), Work(0, 0))
            found[own] = Work(before.flops + cost.flops, before.bytes + cost.bytes)
    return found


def assert_equal(found: Mapping[str, Work], expected: Mapping[str, Work], rounded: int = 0) -> None:
    """Compare all kinds; bytes may differ by `rounded`."""
    for kind in found.keys() | expected.keys():
        own, other = found.get(kind, Work(0, 0)), expected.get(kind, Work(0, 0))
        assert own.flops == other.flops, kind
        assert abs(own.bytes - other.bytes) <= (rounded if kind == KINDS[OpKind.EXPERTS] else 0), kind


@pytest.mark.parametrize("name", FAMILIES)
@given(drawn=st.lists(steps, max_size=4))
def test_counted_steps_are_the_walk_over_the_ops(name: str, drawn: list[list[ScheduledSequence]]) -> None:
    whole, plans = program(name), [StepPlan(each) for each in drawn]
    layers = sum(isinstance(op, Experts) for op in whole.ops)
    assert_equal(counted(work_model(whole, BF16), plans), walked(whole, plans), (2 * BF16 + 2) * layers * len(plans))


@pytest.mark.parametrize("name", ALL)
def test_every_family_is_counted(name: str) -> None:
    whole = program(name)
    plans = [
        StepPlan([sequence(0, 0, 40, True, 0)]),
        StepPlan([sequence(0, 40, 1, True, 0), sequence(1, 3, 1, True, 0), sequence(2, 7, 20, False, 2)]),
        StepPlan([sequence(2, 27, 1, True, 0)]),
    ]
    layers = sum(isinstance(op, Experts) for op in whole.ops)
    assert_equal(counted(work_model(whole, BF16), plans), walked(whole, plans), 3 * (2 * BF16 + 2) * layers)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama", Layout(2, 1)),
        ("gpt-oss", Layout(2, 1)),
        ("gemma3-one-key-head", Layout(1, 2)),
        ("mixtral", Layout(2, 2)),
    ],
)
def test_a_groups_work_is_the_sum_over_its_ranks(name: str, layout: Layout) -> None:
    parts = [part_of(program(name), layout, rank, in_kernels=False) for rank in range(layout.size)]
    plans = [StepPlan([sequence(0, 0, 40, True, 0), sequence(1, 20, 1, True, 0)])] * 2
    found = counted(merged([work_model(part, BF16) for part in parts]), plans)
    expected: dict[str, Work] = {}
    for part in parts:
        for kind, work in walked(part, plans).items():
            before = expected.get(kind, Work(0, 0))
            expected[kind] = Work(before.flops + work.flops, before.bytes + work.bytes)
    assert_equal(found, expected, 2 * 6 * len(parts) * len(program(name).ops))


@given(
    mask=st.builds(
        Visible,
        st.one_of(st.none(), st.integers(1, 70)),
        st.one_of(st.none(), st.integers(1, 70)),
        st.booleans(),
    ),
    positions=st.lists(st.integers(0, 200), min_size=1),
)
def test_decodes_see_what_sequences_of_one_row_see(mask: Visible, positions: list[int]) -> None:
    spans = [(position, position + 1) for position in positions]
    assert mask.of_spans(spans) == (mask.of_decodes(positions), mask.of_decodes(positions))
