"""A mixture as ops: its weights, its cost, and its executors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_support.tiny import make_model, save_model
from safetensors.torch import load_file, save_file

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.experts import Experts
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, Routing, SparseMixer, TopK
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names
from plimsoll_runtime.weights.sources.resolve import resolve

NORM = Norm(1e-6)
ATTENTION = SelfAttention(AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=1.0), RopeSpec(head_dim=8, theta=1e4))
MIXTURE = Mixture(experts=8, chosen=2, inner=24, routing=TopK())
SPEC = DecoderSpec(
    architecture="test",
    vocab_size=100,
    hidden_size=16,
    layers=(LayerSpec(ATTENTION, MIXTURE, NORM),) * 3,
    max_positions=64,
    final_norm=NORM,
)
BF16 = 2
ONE_EXPERT = 3 * 16 * 24 * BF16


def experts_of(program: Program) -> Experts:
    return next(op for op in program.ops if isinstance(op, Experts))


def test_a_decode_of_one_sequence_by_hand() -> None:
    """One row, three layers, bfloat16: the row uses two of eight experts."""
    plan = StepPlan([ScheduledSequence(0, 9, [0], (), True)])
    costs = program_of(SPEC).step_cost(plan, BF16)
    # the router in float32; 16 states in, and two weights of float32 and two numbers of int64 out
    assert costs[OpKind.ROUTE] == OpCost(3 * (8 * 16 * 4 + 16 * 2 + 2 * (4 + 8)), 3 * 2 * 16 * 8)
    # 16 states in and out, for each of two experts 24 opened out and in, and its weight
    passed = (2 * 16 + 2 * 2 * 24) * 2 + 2 * 4
    assert costs[OpKind.EXPERTS] == OpCost(3 * (2 * ONE_EXPERT + passed), 3 * 2 * 2 * 3 * 16 * 24)
    assert not {OpKind.GATE_UP} & costs.keys()


@given(rows=st.integers(1, 64), chosen=st.integers(1, 8))
def test_experts_that_nobody_chose_are_not_read(rows: int, chosen: int) -> None:
    """Compares with the mean number of experts read by rows that choose at random."""
    op = experts_of(program_of(replace(SPEC, layers=(LayerSpec(ATTENTION, replace(MIXTURE, chosen=chosen), NORM),))))
    unread = (1 - chosen / 8) ** rows
    passed = rows * ((2 * 16 + 2 * chosen * 24) * BF16 + chosen * 4)
    read = op.cost(StepRows(rows, 0, [(0, rows)]), BF16).bytes - passed
    assert read == pytest.approx(8 * (1 - unread) * ONE_EXPERT, abs=BF16)


def test_a_shared_expert_is_timed_as_an_mlp_is() -> None:
    layer = LayerSpec(ATTENTION, replace(MIXTURE, shared=GatedMlp(40, bias=True), shared_gated=True), NORM)
    program = program_of(replace(SPEC, layers=(layer,)))
    names = set(program.stored_shapes())
    shared = {
        f"mlp.shared_expert.{part}.{kind}"
        for part in ("gate_proj", "up_proj", "down_proj")
        for kind in ("weight", "bias")
    }
    assert {f"model.layers.0.{name}" for name in (*shared, "mlp.shared_expert_gate.weight")} <= names
    plan = StepPlan([ScheduledSequence(0, 9, [0], (), True)])
    assert {OpKind.ROUTE, OpKind.EXPERTS, OpKind.GATE_UP, OpKind.DOWN} <= program.step_cost(plan, BF16).keys()


def test_tensors_of_each_expert_or_of_all() -> None:
    stacked = ExpertNames(gate_up=("moe.gate_up",), down="moe.down")
    for names, expected in (
        (Names(), {f"mlp.experts.{i}.{part}_proj.weight" for i in range(8) for part in ("gate", "up", "down")}),
        (Names(experts=stacked), {"moe.gate_up.weight", "moe.down.weight"}),
    ):
        program = program_of(replace(SPEC, layers=SPEC.layers[:1], names=names))
        found = {name for name in program.stored_shapes() if "expert" in name or "moe" in name}
        assert found == {f"model.layers.0.{name}" for name in expected}
        assert len({str(weight) for weight in experts_of(program).weights()}) in (16, 24)
    assert program.stored_shapes()["model.layers.0.moe.gate_up.weight"] == (8, 48, 16)
    assert program.stored_shapes()["model.layers.0.moe.down.weight"] == (8, 16, 24)


def test_a_program_is_printed_in_a_line_an_op() -> None:
    lines = str(program_of(SPEC)).splitlines()
    experts = "model.layers.0.mlp.experts.*"
    assert (
        f"added = experts(normed, shares, chosen, {experts}.gate_proj.weight, {experts}.up_proj.weight, "
        f"{experts}.down_proj.weight, chosen=2, activation=silu)"
    ) in lines
    assert any(line.startswith("shares, chosen = route(normed, model.layers.0.mlp.gate.weight") for line in lines)


@dataclass(frozen=True)
class Hashed:
    """Routing by token number, which the kernels do not support."""


@dataclass(frozen=True, slots=True)
class Noisy(TopK):
    """Scores with a field that the kernels do not support."""

    noise: float = 0.0


@pytest.mark.parametrize(
    ("routing", "reason"),
    [
        (TopK("sigmoid", corrected=True, groups=4, open_groups=2), None),
        (SparseMixer(0.1), None),
        (Noisy(), None),
        (Noisy(noise=0.5), "does not support the field noise of Noisy"),
        (TopK("tanh"), "does not support the scores tanh"),  # type: ignore[arg-type]
        (Hashed(), "does not support the routing Hashed"),
    ],
)
def test_routing_that_the_cpu_kernels_do_not_have_is_refused(routing: Routing, reason: str | None) -> None:
    layer = LayerSpec(ATTENTION, replace(MIXTURE, routing=routing), NORM)
    assert why_not_fused(program_of(replace(SPEC, layers=(layer,)))) == reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", ["GraniteMoeConfig", "MixtralConfig"])
def test_weights_are_counted_as_they_are_kept(tmp_path: Path, config: str, dtype: torch.dtype) -> None:
    """The router stays float32 in any run. Each expert of a stack counts once."""
    model = make_model(config, {"num_local_experts": 4})
    save_model(model, tmp_path)
    files = resolve(str(tmp_path))
    program = program_of(describe(files.config))
    wide = {name for name, p in model.named_parameters() if p.dim() == 1 or "gate.weight" in name or "router" in name}
    expected = sum(p.numel() * (4 if n in wide else dtype.itemsize) for n, p in model.named_parameters())
    assert program.weight_bytes(dtype) == expected
    assert load_decoder(files, program, dtype, device=torch.device("cpu")).weight_bytes == expected


def test_layers_that_guess_further_tokens_are_not_read(tmp_path: Path) -> None:
    glm = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    save_model(make_model("Glm4MoeConfig", glm), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    files = resolve(str(tmp_path))
    program = program_of(describe(files.config))
    save_file({**tensors, "model.layers.3.eh_proj.weight": torch.zeros(2)}, path, {"format": "pt"})
    load_decoder(files, program, torch.float32, device=torch.device("cpu"))
    save_file({**tensors, "model.layers.4.eh_proj.weight": torch.zeros(2)}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"unexpected tensors: model\.layers\.4\.eh_proj\.weight; "):
        load_decoder(files, program, torch.float32, device=torch.device("cpu"))


def test_a_stack_of_too_few_experts_is_refused(tmp_path: Path) -> None:
    save_model(make_model("GraniteMoeConfig", {"num_local_experts": 4}), tmp_path)
    files = resolve(str(tmp_path))
    more = program_of(describe({**files.config, "num_local_experts": 5}))
    with pytest.raises(ModelError, match=r"input_linear\.weight \[4, 160, 48\] instead of \[5, 160, 48\]"):
        load_decoder(files, more, torch.float32, device=torch.device("cpu"))
